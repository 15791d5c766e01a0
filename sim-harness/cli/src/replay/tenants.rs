//! What each tenant asked for, and what it got.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, Write};
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tidegate::tenant::Entitlement;
use tidegate::usage::Usage;
use tidegate_sim::table::table;

use super::Run;
use super::judge::{WindowsError, config};
use super::print::pair;
use super::report::{Percentiles, percentiles, ttft};
use super::send::{Failure, Outcome};
use super::senders::{Sender, Senders};

/// What the gateway promises each sender of a senders.
#[derive(Clone, Debug)]
pub struct Promises(Vec<Arc<Entitlement>>);

/// The configuration does not say what is promised.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PromisesError {
    /// The document.
    Config(WindowsError),
    /// It has no tenants.
    NoTenants,
    /// It does not have this tenant; carries those that it has.
    Unknown(String, Vec<String>),
}

impl fmt::Display for PromisesError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Config(error) => error.fmt(f),
            Self::NoTenants => f.write_str("it has no tenants"),
            Self::Unknown(name, known) => {
                write!(f, "it has no tenant {name:?}; it has {}", known.join(", "))
            }
        }
    }
}

impl std::error::Error for PromisesError {}

impl Promises {
    /// From the Tidegate JSON, or an Envoy configuration in YAML that holds it.
    pub fn from_config(bytes: &[u8], senders: &Senders) -> Result<Self, PromisesError> {
        let config = config(bytes).map_err(PromisesError::Config)?;
        let tenants = config.tenants.as_ref().ok_or(PromisesError::NoTenants)?;
        let promised = senders.tenants.iter().map(|sender| {
            tenants.named(sender.tenant.as_bytes()).cloned().ok_or_else(|| {
                let known = tenants.all().iter().map(|one| one.name.clone()).collect();
                PromisesError::Unknown(sender.tenant.clone(), known)
            })
        });
        Ok(Self(promised.collect::<Result<_, _>>()?))
    }
}

/// What a run with tenants found. All but `all` is of the requests that were
/// sent after the warm-up.
#[derive(Clone, Debug)]
pub struct TenantReport {
    /// From the warm-up to the end of sending.
    pub counted: Duration,
    /// One for each sender, in the document's order.
    pub rows: Vec<TenantRow>,
    /// Share of the machine's processor time that was in use meanwhile.
    pub busy: Option<f64>,
}

/// One sender.
#[derive(Clone, Debug)]
pub struct TenantRow {
    /// Its name.
    pub name: String,
    /// The rate that its tenant is promised, tokens a second: the lowest of its
    /// rate and its quotas. Nothing where it is not limited, or nobody says.
    pub rate: Option<f64>,
    /// The tokens that could be admitted in its time: rate × time, and the burst
    /// if it sent nothing before.
    pub promised: Option<f64>,
    /// Requests that its clients wanted answered.
    pub asked: usize,
    /// And their tokens.
    pub asked_tokens: u64,
    /// How often one was sent.
    pub sent: usize,
    /// Those that no limit refused.
    pub admitted: usize,
    /// Refused by a limit, by status and reason.
    pub refused: BTreeMap<String, usize>,
    /// Admitted, but without a complete answer, by what went wrong.
    pub failed: BTreeMap<String, usize>,
    /// Tokens of the complete answers and their prompts, as its tenant counts
    /// them.
    pub tokens: u64,
    /// Of the tokens that all senders got.
    pub share: Option<f64>,
    /// Time to the first token, seconds; streams only.
    pub ttft: Option<Percentiles>,
}

impl TenantReport {
    /// Sums up a run.
    pub fn new(run: &Run, senders: &Senders, promises: Option<&Promises>) -> Self {
        let counted =
            |outcome: &&Outcome| Duration::from_nanos(outcome.request.arrival) >= senders.warmup;
        let each = senders.tenants.iter().enumerate();
        let mut rows: Vec<TenantRow> = each
            .map(|(place, sender)| {
                let own = run.outcomes.iter().filter(|outcome| outcome.tenant == place);
                let own: Vec<&Outcome> = own.filter(counted).collect();
                let entitlement = promises.and_then(|promises| promises.0.get(place));
                TenantRow::new(senders, sender, entitlement.map(Arc::as_ref), &own)
            })
            .collect();
        let all: u64 = rows.iter().map(|row| row.tokens).sum();
        for row in &mut rows {
            row.share = (all > 0).then(|| row.tokens as f64 / all as f64);
        }
        Self { counted: senders.length.saturating_sub(senders.warmup), rows, busy: run.busy }
    }

    /// The same figures for programs. Times are seconds, shares fractions; what
    /// is not known is null.
    pub fn json(&self) -> Value {
        let rows = self.rows.iter().map(|row| {
            json!({
                "name": row.name, "promised_per_second": row.rate, "promised": row.promised,
                "asked": row.asked, "asked_tokens": row.asked_tokens, "sent": row.sent,
                "admitted": row.admitted, "refused": row.refused, "failed": row.failed,
                "tokens": row.tokens, "got_of_promised": row.got_of_promised(),
                "share": row.share, "ttft_s": row.ttft.map(Percentiles::json),
            })
        });
        json!({
            "counted_s": self.counted.as_secs_f64(),
            "processor_busy": self.busy,
            "tenants": rows.collect::<Vec<_>>(),
        })
    }

    /// Prints a table, and why requests were refused.
    pub fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(
            out,
            "What was sent in {:.1} s{}\n",
            self.counted.as_secs_f64(),
            self.busy.map_or(String::new(), |busy| format!(
                ", while the processors of this machine were {:.0} % busy",
                100.0 * busy
            ))
        )?;
        let two = ["", "tokens/s", "", "", "", "", "tokens", "got of", "", "streams only"];
        let head = [
            "tenant",
            "promised",
            "asked",
            "sent",
            "admitted",
            "refused",
            "got",
            "promised",
            "share",
            "TTFT p50/p99",
        ];
        let mut rows: Vec<Vec<String>> =
            [two, head].iter().map(|row| row.map(String::from).to_vec()).collect();
        let percent =
            |share: Option<f64>| share.map_or("-".into(), |s| format!("{:.1} %", 100.0 * s));
        for row in &self.rows {
            rows.push(vec![
                row.name.clone(),
                row.rate.map_or("-".into(), |rate| format!("{rate:.0}")),
                row.asked.to_string(),
                row.sent.to_string(),
                row.admitted.to_string(),
                row.refused.values().sum::<usize>().to_string(),
                row.tokens.to_string(),
                percent(row.got_of_promised()),
                percent(row.share),
                pair(row.ttft),
            ]);
        }
        out.write_all(table(&rows).as_bytes())?;
        self.print_counts(out, "Refused", |row| &row.refused)?;
        self.print_counts(out, "Admitted without a complete answer", |row| &row.failed)
    }

    fn print_counts(
        &self,
        out: &mut dyn Write,
        title: &str,
        counts: fn(&TenantRow) -> &BTreeMap<String, usize>,
    ) -> io::Result<()> {
        let rows: Vec<Vec<String>> = self
            .rows
            .iter()
            .flat_map(|row| counts(row).iter().map(|(why, n)| (&row.name, why, n)))
            .map(|(name, why, n)| vec![format!("  {name}"), n.to_string(), format!("with {why}")])
            .collect();
        if rows.is_empty() {
            return Ok(());
        }
        writeln!(out, "\n{title}")?;
        out.write_all(table(&rows).as_bytes())
    }
}

impl TenantRow {
    fn new(
        senders: &Senders,
        sender: &Sender,
        entitlement: Option<&Entitlement>,
        own: &[&Outcome],
    ) -> Self {
        let (mut refused, mut failed) = (BTreeMap::new(), BTreeMap::new());
        let (mut asked_tokens, mut tokens) = (0, 0);
        for outcome in own {
            let planned = outcome.request;
            if outcome.retries == 0 {
                asked_tokens += u64::from(planned.input_tokens) + u64::from(planned.output_tokens);
            }
            match &outcome.result {
                Ok(answer) => {
                    let usage = Usage {
                        input: Some(outcome.prompt_tokens().into()),
                        output: Some(answer.output_tokens.into()),
                        ..Usage::default()
                    };
                    let weights = entitlement.map(|one| one.weights).unwrap_or_default();
                    tokens += weights.of(&usage).unwrap_or(0);
                }
                Err(failure) => match refusal(outcome, failure) {
                    Some(why) => *refused.entry(why).or_default() += 1,
                    None => *failed.entry(failure.name()).or_default() += 1,
                },
            }
        }
        let laws = || entitlement.iter().flat_map(|one| one.limits.laws.iter().flatten());
        let rate =
            |law: &tidegate::tenant::Law| law.tokens as f64 / (law.period.as_nanos() as f64 / 1e9);
        let from = sender.from.max(senders.warmup);
        let time = sender.to.saturating_sub(from).as_secs_f64();
        // A bucket that has not been used is full.
        let full = sender.from >= senders.warmup;
        let promised =
            laws().map(|law| rate(law) * time + if full { law.burst as f64 } else { 0.0 });
        Self {
            name: sender.name.clone(),
            rate: laws().map(rate).min_by(f64::total_cmp),
            promised: promised.min_by(f64::total_cmp),
            asked: own.iter().filter(|outcome| outcome.retries == 0).count(),
            asked_tokens,
            sent: own.len(),
            admitted: own.len() - refused.values().sum::<usize>(),
            refused,
            failed,
            tokens,
            share: None,
            ttft: percentiles(own.iter().copied().filter_map(ttft)),
        }
    }

    /// Tokens got for each that was promised.
    pub fn got_of_promised(&self) -> Option<f64> {
        self.promised.filter(|promised| *promised > 0.0).map(|all| self.tokens as f64 / all)
    }
}

/// Status and reason, if a limit refused it.
fn refusal(outcome: &Outcome, failure: &Failure) -> Option<String> {
    let status = match failure {
        Failure::Status(status, _) => *status,
        Failure::ContextLength(_) => 400,
        _ => return None,
    };
    let reason = outcome.decision.refused.as_deref();
    // A gateway that says nothing else: somebody limits there.
    let reason = reason.or((status == 429).then_some("no reason given"))?;
    Some(format!("{status}, {reason}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replay::report::tests::{outcome, run};

    const SCENARIO: &str = r#"{"seconds": 12, "warmup_s": 2, "tenants": [
        {"name": "a", "clients": 1, "input_tokens": 100, "output_tokens": 11},
        {"name": "b", "tenant": "a", "clients": 1, "from_s": 7, "lengths": "lmsys"}]}"#;
    const CONFIG: &str = r#"{"version": 1, "models": [{"match": "*", "pools": [
        {"name": "p", "cluster": "p", "max_model_len": 8192}]}],
        "tenants": {"default": "a", "from": [], "entitlements": [{"name": "a",
            "tokens_per_second": 100, "burst": 500, "quotas": {"minute": 3000},
            "count": {"input": 2}}]}}"#;

    fn refused(at: u64, retries: u32, status: u16, why: Option<&str>) -> Outcome {
        let mut outcome = outcome(0, 100, None);
        outcome.request.arrival = at * 1_000_000_000;
        outcome.retries = retries;
        outcome.result = Err(Failure::Status(status, String::new()));
        outcome.decision.refused = why.map(str::to_owned);
        outcome
    }

    #[test]
    fn figures_are_of_what_was_sent_after_the_warm_up() {
        let senders = Senders::parse(SCENARIO.as_bytes()).unwrap();
        let promises = Promises::from_config(CONFIG.as_bytes(), &senders).unwrap();
        let answered = |at: u64, tenant| {
            let mut outcome = outcome(0, 100, None);
            (outcome.request.arrival, outcome.tenant) = (at * 1_000_000_000, tenant);
            outcome
        };
        let mut run = run(vec![
            answered(1, 0),
            answered(2, 0),
            answered(8, 1),
            refused(3, 0, 429, Some("tokens")),
            refused(5, 1, 429, Some("tokens")),
            refused(6, 0, 429, None),
            refused(6, 0, 400, Some("too_large")),
            refused(6, 0, 503, None),
        ]);
        run.busy = Some(0.25);
        let report = TenantReport::new(&run, &senders, Some(&promises));
        let [a, b] = report.rows.as_slice() else { panic!() };
        assert_eq!((a.asked, a.asked_tokens, a.sent, a.admitted), (5, 555, 6, 2));
        let refused: Vec<_> = a.refused.iter().map(|(why, n)| (why.as_str(), *n)).collect();
        assert_eq!(
            refused,
            [("400, too_large", 1), ("429, no reason given", 1), ("429, tokens", 2)]
        );
        assert_eq!(a.failed, BTreeMap::from([("status 503".into(), 1)]));
        // By the tenant's weights.
        assert_eq!((a.tokens, b.tokens, a.share), (211, 211, Some(0.5)));
        // The quota is the lower one: 50 a second, for 10 s; the other sender's
        // bucket is full when it begins: 5 s, and the rate's burst is 500.
        assert_eq!((a.rate, a.promised, b.promised), (Some(50.0), Some(500.0), Some(1000.0)));
        assert_eq!(a.got_of_promised(), Some(0.422));
        let json = report.json();
        assert_eq!(json["tenants"][0]["refused"]["429, tokens"], 2);
        assert_eq!(
            (json["processor_busy"].as_f64(), json["counted_s"].as_f64()),
            (Some(0.25), Some(10.0))
        );
        let mut text = Vec::new();
        report.print(&mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        assert!(text.contains("25 % busy") && text.contains("42.2 %"), "{text}");
        assert!(text.contains("with 429, tokens") && text.contains("with status 503"), "{text}");
    }

    #[test]
    fn what_nobody_promised_is_a_dash() {
        let senders = Senders::parse(SCENARIO.as_bytes()).unwrap();
        let report = TenantReport::new(&run(Vec::new()), &senders, None);
        assert_eq!((report.rows[0].rate, report.rows[0].share), (None, None));
        assert!(report.json()["tenants"][0]["promised"].is_null());
        let mut text = Vec::new();
        report.print(&mut text).unwrap();
        assert!(!String::from_utf8(text).unwrap().contains("Refused"));
    }

    #[test]
    fn a_tenant_that_nobody_configured_is_named() {
        let senders =
            Senders::parse(SCENARIO.replace("\"tenant\": \"a\"", "\"tenant\": \"x\"").as_bytes());
        let error = |config: &str| {
            Promises::from_config(config.as_bytes(), senders.as_ref().unwrap())
                .unwrap_err()
                .to_string()
        };
        assert_eq!(error(CONFIG), "it has no tenant \"x\"; it has a");
        let (models, _) = CONFIG.split_once("\"tenants\"").unwrap();
        let without = format!("{}}}", models.trim_end().trim_end_matches(','));
        assert_eq!(error(&without), "it has no tenants");
    }
}
