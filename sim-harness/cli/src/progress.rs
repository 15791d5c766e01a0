//! A progress bar for people, and only for them.

use std::io::IsTerminal as _;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

/// A bar of `total` answers on standard error where that is a terminal; a
/// silent one elsewhere.
pub fn bar(total: u64) -> ProgressBar {
    styled(total, "{bar:40} {pos}/{len} answers, {elapsed} of about {duration}")
}

/// The same of so many seconds.
pub fn seconds(total: u64) -> ProgressBar {
    styled(total, "{bar:40} {pos} of {len} seconds")
}

/// A bar of so many stages, which says what is done now; nothing where standard error
/// is no terminal.
pub fn stages(total: u32) -> Option<ProgressBar> {
    let bar = styled(total.into(), "{bar:40} {pos} of {len}, {elapsed}: {msg}");
    // One stage may take a while: the clock shows that something is done.
    bar.enable_steady_tick(Duration::from_millis(500));
    (!bar.is_hidden()).then_some(bar)
}

fn styled(total: u64, template: &str) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template(template);
    let bar = ProgressBar::new(total);
    bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}
