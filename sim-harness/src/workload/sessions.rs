//! Recorded sessions: conversations that grow turn by turn.
//!
//! One format: CSV with the header of [`SESSIONS_HEADER`], as in
//! `cc_agentic_sessions_sample.csv`. Of it the session, the time that its client
//! thought before the turn (none where the field is empty, as in first turns),
//! and both counts of tokens are read.

use super::TraceError;
use crate::SECOND;

/// One turn of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn {
    /// How long the client waits after the answer before. Nanoseconds.
    pub think: u64,
    /// Tokens of the prompt, all before it included. At least 1.
    pub input_tokens: u32,
    /// Tokens of the answer. At least 1: a recorded 0 is taken for 1.
    pub output_tokens: u32,
}

/// What the file starts with.
pub const SESSIONS_HEADER: &str = "session,turn,arrival_delta_s,think_time_s,model,input_tokens,\
                                   output_tokens,prefix_blocks_64,ttft_s,api_time_s";

/// Longest thinking that is allowed, seconds: a year.
const THINK_MAX: f64 = 3.2e7;

/// Reads sessions, each in its own list, none empty. Lines of one session stand
/// together.
///
/// # Errors
///
/// Names the line, the field, what was found and what is allowed.
pub fn parse_sessions(text: &str) -> Result<Vec<Vec<Turn>>, TraceError> {
    let mut lines = text.lines().enumerate();
    let header = lines.next().map_or("", |(_, line)| line.trim());
    if header != SESSIONS_HEADER {
        let why = format!("header {header:?}; allowed: {SESSIONS_HEADER}");
        return Err(TraceError::Line { line: 1, why });
    }
    let (mut sessions, mut before): (Vec<Vec<Turn>>, Option<&str>) = (Vec::new(), None);
    for (nth, text) in lines {
        let (line, text) = (nth + 1, text.trim());
        if text.is_empty() {
            continue;
        }
        let mut columns = text.split(',');
        let columns: [&str; 10] = std::array::from_fn(|_| columns.next().unwrap_or(""));
        let [session, _, _, think, _, input, output, ..] = columns;
        let tokens = |field: &'static str, value: &str, least: u32, allowed: &'static str| {
            let found = value.parse::<u32>().ok().filter(|tokens| *tokens >= least);
            found.ok_or_else(|| TraceError::Field { line, field, value: value.into(), allowed })
        };
        let seconds = if think.is_empty() { Some(0.0) } else { think.parse::<f64>().ok() };
        let seconds = seconds.filter(|seconds| (0.0..=THINK_MAX).contains(seconds));
        let seconds = seconds.ok_or_else(|| TraceError::Field {
            line,
            field: "think_time_s",
            value: think.into(),
            allowed: "nothing, or seconds, 0 to 3.2e7",
        })?;
        let turn = Turn {
            think: (seconds * SECOND as f64) as u64,
            input_tokens: tokens("input_tokens", input, 1, "tokens, 1 to 4294967295")?,
            output_tokens: tokens("output_tokens", output, 0, "tokens, 0 to 4294967295")?.max(1),
        };
        if before.replace(session) != Some(session) {
            sessions.push(Vec::new());
        }
        if let Some(turns) = sessions.last_mut() {
            turns.push(turn);
        }
    }
    if sessions.is_empty() { Err(TraceError::Empty) } else { Ok(sessions) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sessions_are_told_apart_and_errors_name_their_place() {
        let text = format!(
            "{SESSIONS_HEADER}\n0,0,0.1,0,m,32701,161,511,4.6,6.6\n\
             0,1,17.9,11.5,m,32722,201,512,1.5,3.2\n1,0,0.0,,m,28989,0,453,1.3,2.6\n"
        );
        let sessions = parse_sessions(&text).unwrap();
        let turn = |think, input_tokens, output_tokens| Turn { think, input_tokens, output_tokens };
        let second = turn(11_500_000_000, 32_722, 201);
        assert_eq!(sessions, [vec![turn(0, 32_701, 161), second], vec![turn(0, 28_989, 1)]]);
        let error =
            |from: &str, to: &str| parse_sessions(&text.replace(from, to)).unwrap_err().to_string();
        assert!(error("11.5", "-1").contains("line 3: think_time_s is \"-1\""));
        assert!(error("28989", "x").contains("line 4: input_tokens is \"x\""));
        assert!(error("201,512", "-2,512").contains("output_tokens is \"-2\""));
        assert!(error("session,turn", "turn,session").contains("line 1: header"));
        let error = parse_sessions(SESSIONS_HEADER).unwrap_err().to_string();
        assert!(error.contains("no requests"), "{error}");
    }
}
