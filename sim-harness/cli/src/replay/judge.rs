//! Was the pool right? Judged from what the load generator knows: the true
//! lengths, which the gateway could only estimate.

use std::fmt;

use tidegate::config::{Config, ConfigError};
use tidegate_envoy_support::Template;

use super::send::{Failure, Outcome};

/// A pool as the gateway is configured to see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Window {
    /// Its name.
    pub name: String,
    /// Its cluster.
    pub cluster: String,
    /// Tokens of one sequence, at most.
    pub max_model_len: u64,
    /// Tokens up to which requests belong here.
    pub threshold: u64,
}

/// The pools of one model, smallest window first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Windows(Vec<Window>);

/// The gateway's configuration does not say what the pools are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WindowsError {
    /// The document is refused.
    Config(ConfigError),
    /// The Envoy configuration does not hold exactly one; says why.
    Yaml(String),
    /// It has no pools for this model; carries the model.
    NoModel(String),
}

impl fmt::Display for WindowsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Config(error) => error.fmt(f),
            Self::Yaml(why) => f.write_str(why),
            Self::NoModel(model) => write!(f, "the configuration has no pools for model {model:?}"),
        }
    }
}

impl std::error::Error for WindowsError {}

/// The gateway's configuration: its JSON, or an Envoy configuration in YAML that
/// holds it as a block.
pub(super) fn config(bytes: &[u8]) -> Result<Config, WindowsError> {
    let yaml = std::str::from_utf8(bytes).ok().filter(|text| text.contains("value: |"));
    let config = match yaml.filter(|text| !text.trim_start().starts_with('{')) {
        Some(yaml) => {
            let json = Template::new(yaml).plugin().map_err(WindowsError::Yaml)?;
            Config::parse(json.as_bytes())
        }
        None => Config::parse(bytes),
    };
    config.map_err(WindowsError::Config)
}

impl Windows {
    /// The pools that a Tidegate configuration gives a model. `bytes` is its
    /// JSON, or an Envoy configuration in YAML that holds it as a block.
    pub fn from_config(bytes: &[u8], model: &str) -> Result<Self, WindowsError> {
        let config = config(bytes)?;
        let settings = config.settings(b"/v1/chat/completions", b"", None);
        let model_pools = settings
            .model(Some(model.as_bytes()))
            .ok_or_else(|| WindowsError::NoModel(model.into()))?;
        Ok(Self::new(
            model_pools
                .pools
                .iter()
                .map(|pool| Window {
                    name: pool.name.clone(),
                    cluster: pool.cluster.clone(),
                    max_model_len: pool.max_model_len,
                    threshold: pool.threshold,
                })
                .collect(),
        ))
    }

    /// These pools, in any order.
    pub fn new(mut windows: Vec<Window>) -> Self {
        windows.sort_by_key(|window| window.max_model_len);
        Self(windows)
    }

    /// Smallest window first.
    pub fn pools(&self) -> &[Window] {
        &self.0
    }

    /// A pool's place, by its name or its cluster.
    pub(super) fn rank(&self, name: &str) -> Option<usize> {
        let named = self.0.iter().position(|window| window.name == name);
        named.or_else(|| self.0.iter().position(|window| window.cluster == name))
    }
}

/// Whether a request went where it belonged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Verdict {
    /// It did.
    Right,
    /// Sent to a pool that it did not fit, whichever pool answered in the end: a
    /// context-length 400, an answer cut at the window, or a prompt and output
    /// (the cap, or what was produced without one) above the chosen window.
    UnderRoute,
    /// It fitted a smaller pool's threshold, yet went larger.
    OverRoute,
    /// It fitted the chosen pool, but another one answered, as when no replica of
    /// the chosen one is up.
    Spill,
    /// It fits no pool, or was cut at the largest window.
    TooLarge,
    /// It failed for another reason, or its pool is not known.
    Unknown,
}

/// Judges one outcome.
pub fn judge(windows: &Windows, outcome: &Outcome) -> Verdict {
    let input = u64::from(outcome.prompt_tokens());
    let cap = outcome.request.cap.map(u64::from);
    // What a server admits: prompt and cap, or the prompt and one token.
    let admits = |window: &Window| input + cap.unwrap_or(1) <= window.max_model_len;
    let Some(largest) = windows.0.last() else { return Verdict::Unknown };
    if !admits(largest) {
        return Verdict::TooLarge;
    }
    let place = |name: &Option<String>| name.as_deref().and_then(|name| windows.rank(name));
    let answered = place(&outcome.answered_by);
    let Some(chosen) = place(&outcome.decision.pool).or(answered) else { return Verdict::Unknown };
    let output = match &outcome.result {
        Err(Failure::ContextLength(_)) => return Verdict::UnderRoute,
        Err(_) => return Verdict::Unknown,
        Ok(answer) => {
            let output = u64::from(answer.output_tokens);
            let window = answered.and_then(|rank| windows.0.get(rank));
            let cut_at_window = answer.finish == "length"
                && cap.is_none_or(|cap| output < cap)
                && window.is_some_and(|window| input + output >= window.max_model_len);
            if cut_at_window {
                let last = answered == Some(windows.0.len() - 1);
                return if last { Verdict::TooLarge } else { Verdict::UnderRoute };
            }
            output
        }
    };
    let need = input + cap.unwrap_or(output);
    if windows.0.get(chosen).is_some_and(|window| need > window.max_model_len) {
        return Verdict::UnderRoute;
    }
    if answered.is_some_and(|answered| answered != chosen) {
        return Verdict::Spill;
    }
    match windows.0.iter().position(|window| need <= window.threshold) {
        Some(smallest) if smallest < chosen => Verdict::OverRoute,
        _ => Verdict::Right,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tidegate_sim::workload::Request;

    use super::*;
    use crate::replay::send::{Answered, Decision};
    use crate::text::Kind;

    fn windows() -> Windows {
        let window = |name: &str, max_model_len, threshold| Window {
            name: name.into(),
            cluster: format!("{name}_cluster"),
            max_model_len,
            threshold,
        };
        Windows::new(vec![window("long", 10_000, 10_000), window("short", 1_000, 900)])
    }

    struct Case {
        input: u32,
        cap: Option<u32>,
        chosen: &'static str,
        answered: &'static str,
        result: Result<(u32, &'static str), Failure>,
    }

    fn verdict(case: Case) -> Verdict {
        let name = |name: &str| (!name.is_empty()).then(|| name.to_owned());
        let outcome = Outcome {
            index: 0,
            tenant: 0,
            retries: 0,
            request: Request {
                arrival: 0,
                input_tokens: case.input,
                output_tokens: 1,
                cap: case.cap,
            },
            kind: Kind::English,
            stream: false,
            content_bytes: 1,
            decision: Decision { pool: name(case.chosen), ..Decision::default() },
            answered_by: name(case.answered),
            result: case.result.map(|(output_tokens, finish)| Answered {
                output_tokens,
                prompt_tokens: None,
                finish: finish.into(),
                first_token: None,
                end: Duration::ZERO,
            }),
        };
        judge(&windows(), &outcome)
    }

    fn answered(
        (input, cap): (u32, Option<u32>),
        (chosen, by): (&'static str, &'static str),
        output: (u32, &'static str),
    ) -> Verdict {
        verdict(Case { input, cap, chosen, answered: by, result: Ok(output) })
    }

    #[test]
    fn each_verdict_has_its_case() {
        let stop = (100, "stop");
        let short = ("short", "short");
        let long = ("long", "long");
        assert_eq!(answered((500, Some(200)), short, stop), Verdict::Right);
        assert_eq!(answered((500, Some(401)), long, stop), Verdict::Right);
        assert_eq!(answered((500, Some(400)), long, stop), Verdict::OverRoute);
        // Uncapped, the actual output decides.
        assert_eq!(answered((800, None), long, (100, "stop")), Verdict::OverRoute);
        assert_eq!(answered((800, None), long, (101, "stop")), Verdict::Right);
        // Between threshold and window the short pool is no error.
        assert_eq!(answered((500, Some(450)), short, stop), Verdict::Right);
        // Cut at the window, not at the cap.
        assert_eq!(answered((900, None), short, (100, "length")), Verdict::UnderRoute);
        assert_eq!(answered((900, Some(100)), short, (100, "length")), Verdict::Right);
        assert_eq!(answered((9_900, None), long, (100, "length")), Verdict::TooLarge);
        // Answered larger than chosen.
        assert_eq!(answered((900, Some(200)), ("short", "long"), stop), Verdict::UnderRoute);
        assert_eq!(answered((500, Some(200)), ("short", "long"), stop), Verdict::Spill);
        // Uncapped, what was produced elsewhere decides if it had fitted.
        assert_eq!(answered((900, None), ("short", "long"), (101, "stop")), Verdict::UnderRoute);
        assert_eq!(answered((900, None), ("short", "long"), stop), Verdict::Spill);
        // Clusters name pools too, and the backend's word does without the gateway's.
        assert_eq!(answered((500, None), ("long_cluster", "long"), stop), Verdict::OverRoute);
        assert_eq!(answered((500, None), ("", "long"), stop), Verdict::OverRoute);
        assert_eq!(answered((500, None), ("", ""), stop), Verdict::Unknown);
        assert_eq!(answered((9_900, Some(101)), long, stop), Verdict::TooLarge);
    }

    #[test]
    fn failures_count_only_when_they_name_the_length() {
        let failed = |input, failure| {
            let result = Err(failure);
            verdict(Case { input, cap: Some(200), chosen: "short", answered: "short", result })
        };
        let too_long = Failure::ContextLength(String::new());
        assert_eq!(failed(900, too_long.clone()), Verdict::UnderRoute);
        assert_eq!(failed(9_900, too_long), Verdict::TooLarge);
        assert_eq!(failed(900, Failure::Status(503, String::new())), Verdict::Unknown);
    }

    #[test]
    fn windows_come_from_the_gateways_configuration() {
        let config = br#"{"version": 1, "models": [{"match": "*", "pools": [
            {"name": "long", "cluster": "l", "max_model_len": 131072},
            {"name": "short", "cluster": "s", "max_model_len": 8192, "threshold": 8000}]}]}"#;
        let windows = Windows::from_config(config, "m").unwrap();
        let names: Vec<&str> = windows.pools().iter().map(|w| w.name.as_str()).collect();
        assert_eq!(names, ["short", "long"]);
        assert_eq!(windows.pools()[0].threshold, 8_000);
        assert!(Windows::from_config(b"{}", "m").is_err());
    }

    #[test]
    fn an_envoy_configuration_holds_the_gateways() {
        use tidegate_envoy_support::{ENVOY_YAML, TWO_INSTANCES_YAML};
        let windows = Windows::from_config(ENVOY_YAML.as_bytes(), "m").unwrap();
        let sizes: Vec<u64> = windows.pools().iter().map(|w| w.max_model_len).collect();
        assert_eq!(sizes, [8_192, 131_072]);
        let error = |text: &str| Windows::from_config(text.as_bytes(), "m").unwrap_err();
        assert!(error(TWO_INSTANCES_YAML).to_string().contains("2 times, not once"));
        assert!(matches!(error("static_resources: {}"), WindowsError::Config(_)));
    }

    #[test]
    fn the_backends_own_count_is_the_truth() {
        let mut outcome = crate::replay::report::tests::outcome(0, 500, Some(500));
        outcome.answered_by = Some("short".into());
        assert_eq!(judge(&windows(), &outcome), Verdict::Right);
        assert_eq!(outcome.estimate_error(), Some(0.0));
        outcome.result.as_mut().unwrap().prompt_tokens = Some(1_000);
        assert_eq!(judge(&windows(), &outcome), Verdict::UnderRoute);
        assert_eq!(outcome.estimate_error(), Some(-0.5));
    }
}
