//! How bytes per token are learned, from the document.

use super::ConfigError;
use super::node::Node;
use crate::estimate::Settings;

pub(super) fn estimator(node: &Node<'_>) -> Result<Settings, ConfigError> {
    let members = node.object()?;
    members.only(&[
        "start_ratio",
        "decay",
        "margin",
        "min_samples",
        "ratio_min",
        "ratio_max",
        "message_tokens",
    ])?;
    let default = Settings::default();
    let number =
        |key, min, max, default| members.get(key).map_or(Ok(default), |node| node.number(min, max));
    let ratio_min = number("ratio_min", 0.1, 100.0, default.ratio_min)?;
    let ratio_max = number("ratio_max", ratio_min, 100.0, default.ratio_max)?;
    Ok(Settings {
        start_ratio: number("start_ratio", ratio_min, ratio_max, default.start_ratio)?,
        decay: number("decay", 0.0, 0.9999, default.decay)?,
        margin: number("margin", 0.0, 10.0, default.margin)?,
        min_samples: number("min_samples", 0.0, 1e6, default.min_samples)?,
        ratio_min,
        ratio_max,
        message_tokens: members
            .get("message_tokens")
            .map_or(Ok(default.message_tokens), |node| node.integer(0, 1000, ""))?,
    })
}
