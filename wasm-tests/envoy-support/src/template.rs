//! Changes to the text of an Envoy configuration.

/// `envoy/envoy.yaml`, the file that README shows.
pub const ENVOY_YAML: &str = include_str!("../../../envoy/envoy.yaml");

/// `envoy/two-instances.yaml`: two filters in one chain, switched per route.
pub const TWO_INSTANCES_YAML: &str = include_str!("../../../envoy/two-instances.yaml");

/// `envoy/ratelimit/envoy.yaml`: one quota over many Envoys.
pub const RATELIMIT_YAML: &str = include_str!("../../../envoy/ratelimit/envoy.yaml");

/// The text of a configuration, and how to change it. Every change must find
/// its place exactly once; anything else is an error.
#[derive(Debug, Clone)]
pub struct Template(String);

impl Template {
    /// Starts from `text`.
    pub fn new(text: &str) -> Self {
        Self(text.to_string())
    }

    /// The text as it is now.
    pub fn text(&self) -> &str {
        &self.0
    }

    /// Puts `with` in the place of `token`.
    pub fn replace(&mut self, token: &str, with: &str) -> Result<(), String> {
        match self.0.matches(token).count() {
            1 => {
                self.0 = self.0.replacen(token, with, 1);
                Ok(())
            }
            n => Err(format!("the configuration has `{token}` {n} times, not once")),
        }
    }

    /// Adds `line` after the line that has `token`, indented as that one is.
    pub fn insert_after(&mut self, token: &str, line: &str) -> Result<(), String> {
        let whole = self.line_with(token)?;
        let indent: String = whole.chars().take_while(|c| *c == ' ').collect();
        self.replace(&format!("{whole}\n"), &format!("{whole}\n{indent}{line}\n"))
    }

    /// Removes the line that has `token`.
    pub fn remove_line(&mut self, token: &str) -> Result<(), String> {
        let whole = self.line_with(token)?;
        self.replace(&format!("{whole}\n"), "")
    }

    /// Replaces the plugin's JSON.
    pub fn configuration(&mut self, json: &str) -> Result<(), String> {
        let (from, to) = self.plugin_lines()?;
        let lines: Vec<&str> = self.0.lines().collect();
        let (before, rest) = lines.split_at(from);
        let (old, after) = rest.split_at(to - from);
        let indent =
            old.first().map_or("", |line| line.split_at(line.len() - line.trim_start().len()).0);
        let new = json.lines().map(|line| format!("{indent}{line}"));
        let all = before.iter().map(ToString::to_string).chain(new);
        let all: Vec<String> = all.chain(after.iter().map(ToString::to_string)).collect();
        self.0 = all.join("\n") + "\n";
        Ok(())
    }

    /// The plugin's JSON.
    pub fn plugin(&self) -> Result<String, String> {
        let (from, to) = self.plugin_lines()?;
        Ok(self.0.lines().skip(from).take(to - from).collect::<Vec<_>>().join("\n"))
    }

    /// The lines of the plugin's JSON: the file's only `value: |` block.
    fn plugin_lines(&self) -> Result<(usize, usize), String> {
        let head = self.line_with("value: |")?;
        let depth = " ".repeat(head.len() - head.trim_start().len() + 1);
        let inside = |line: &&str| line.trim().is_empty() || line.starts_with(&depth);
        let from = self.0.lines().take_while(|line| *line != head).count() + 1;
        let count = self.0.lines().skip(from).take_while(inside).count();
        if count == 0 {
            return Err("the plugin's `value: |` block has no content".into());
        }
        Ok((from, from + count))
    }

    /// Moves a port: `port_value: from` becomes `port_value: to`.
    pub fn port(&mut self, from: u16, to: u16) -> Result<(), String> {
        self.replace(&format!("port_value: {from} "), &format!("port_value: {to} "))
    }

    fn line_with(&self, token: &str) -> Result<String, String> {
        let found: Vec<&str> = self.0.lines().filter(|line| line.contains(token)).collect();
        match found.as_slice() {
            [line] => Ok((*line).to_string()),
            lines => {
                Err(format!("the configuration has `{token}` {} times, not once", lines.len()))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_must_be_there_exactly_once() {
        let mut t = Template::new("a: 1\nb: 1\n");
        assert_eq!(t.replace("c", ""), Err("the configuration has `c` 0 times, not once".into()));
        assert_eq!(t.replace("1", ""), Err("the configuration has `1` 2 times, not once".into()));
        assert_eq!(t.replace("a: 1", "a: 2"), Ok(()));
        assert_eq!(t.text(), "a: 2\nb: 1\n");
    }

    #[test]
    fn lines_come_and_go() {
        let mut t = Template::new("a:\n  b: 1\nc: 2\n");
        assert_eq!(t.insert_after("b:", "d: 3"), Ok(()));
        assert_eq!(t.text(), "a:\n  b: 1\n  d: 3\nc: 2\n");
        assert_eq!(t.remove_line("b:"), Ok(()));
        assert_eq!(t.text(), "a:\n  d: 3\nc: 2\n");
    }

    #[test]
    fn the_configuration_block_ends_where_the_indentation_does() {
        let mut t = Template::new("x:\n  value: |\n    {\n\n      1\n    }\n  y: 2\n");
        assert_eq!(t.configuration("{\n}"), Ok(()));
        assert_eq!(t.text(), "x:\n  value: |\n    {\n    }\n  y: 2\n");
    }

    #[test]
    fn a_port_is_not_the_beginning_of_another() {
        let mut t = Template::new("{ port_value: 1800 } { port_value: 18001 }");
        assert_eq!(t.port(1800, 7), Ok(()));
        assert_eq!(t.text(), "{ port_value: 7 } { port_value: 18001 }");
    }
}
