//! The estimator's settings, from the document.

use super::ConfigError;
use super::node::Node;
use crate::estimate::{FEATURES, GIVEN_LAYOUT, Given, GivenModel, Key, Kind, MODELS_MAX, Settings};
use std::sync::Arc;

pub(super) fn estimator(node: &Node<'_>) -> Result<Settings, ConfigError> {
    let members = node.object()?;
    members.only(&[
        "kind",
        "start_ratio",
        "decay",
        "margin",
        "min_samples",
        "ratio_min",
        "ratio_max",
        "message_tokens",
        "learned",
        "export_seconds",
    ])?;
    let default = Settings::default();
    let number =
        |key, min, max, default| members.get(key).map_or(Ok(default), |node| node.number(min, max));
    let ratio_min = number("ratio_min", 0.1, 100.0, default.ratio_min)?;
    let ratio_max = number("ratio_max", ratio_min, 100.0, default.ratio_max)?;
    Ok(Settings {
        kind: members.get("kind").map_or(Ok(default.kind), |node| {
            node.word(&[("regress", Kind::Regress), ("ema", Kind::Ema)])
        })?,
        start_ratio: number("start_ratio", ratio_min, ratio_max, default.start_ratio)?,
        decay: number("decay", 0.0, 0.9999, default.decay)?,
        margin: number("margin", 0.0, 10.0, default.margin)?,
        min_samples: number("min_samples", 0.0, 1e6, default.min_samples)?,
        ratio_min,
        ratio_max,
        message_tokens: members
            .get("message_tokens")
            .map_or(Ok(default.message_tokens), |node| node.integer(0, 1000, ""))?,
        learned: Arc::new(
            members.get("learned").map_or(Ok(Given::default()), |node| given(&node))?,
        ),
        export_seconds: members
            .get("export_seconds")
            .map_or(Ok(default.export_seconds), |node| node.integer(0, 86_400, " (0 for never)"))?,
    })
}

/// What another instance exported.
fn given(node: &Node<'_>) -> Result<Given, ConfigError> {
    let members = node.object()?;
    members.only(&["layout", "models"])?;
    members.need("layout", "as it was exported")?.integer(
        GIVEN_LAYOUT,
        GIVEN_LAYOUT,
        ", or be exported anew",
    )?;
    let models = members.need("models", "an object, as it was exported")?;
    let entries = models.object()?.entries();
    if entries.len() > MODELS_MAX {
        return Err(models.refuse(format!("must hold at most {MODELS_MAX} models")));
    }
    entries.into_iter().map(|(name, node)| Ok((key(name, &node)?, model(&node)?))).collect()
}

fn key(name: &str, node: &Node<'_>) -> Result<Key, ConfigError> {
    let digits = name.len() == 16 && name.bytes().all(|byte| byte.is_ascii_hexdigit());
    let key = u64::from_str_radix(name, 16).ok().filter(|_| digits);
    key.map(Key).ok_or_else(|| node.refuse("must be named by 16 hexadecimal digits"))
}

fn model(node: &Node<'_>) -> Result<GivenModel, ConfigError> {
    let members = node.object()?;
    members.only(&["answers", "margin", "coefficients", "known"])?;
    let numbers = |name: &str, min, max| {
        let node = members.need(name, "a list of numbers")?;
        let list =
            node.list()?.iter().map(|node| node.number(min, max)).collect::<Result<Vec<_>, _>>()?;
        <[f64; FEATURES]>::try_from(list)
            .map_err(|_| node.refuse(format!("must hold {FEATURES} numbers")))
    };
    Ok(GivenModel {
        answers: members.need("answers", "a number")?.number(0.0, 1e15)?,
        margin: members.need("margin", "a number")?.number(0.0, 100.0)?,
        coefficients: numbers("coefficients", -1e3, 1e3)?,
        known: numbers("known", 0.0, 1e12)?,
    })
}
