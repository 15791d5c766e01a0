//! Numbers for people, short.

/// To three significant digits, thousands as k, millions as M, and so on.
pub(super) fn short(value: f64) -> String {
    let (scaled, unit) = match value.abs() {
        size if size >= 1e9 => (value / 1e9, "G"),
        size if size >= 1e6 => (value / 1e6, "M"),
        size if size >= 1e3 => (value / 1e3, "k"),
        _ => (value, ""),
    };
    format!("{}{unit}", digits(scaled))
}

/// To three significant digits and no zeros at the end; whole numbers whole.
fn digits(value: f64) -> String {
    if value == 0.0 || !value.is_finite() {
        return "0".into();
    }
    let places = 2 - libm::floor(libm::log10(value.abs())) as i32;
    let text = format!("{value:.*}", places.clamp(0, 12) as usize);
    if text.contains('.') {
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    } else {
        text
    }
}

/// A count or a figure above a bar: whole numbers as they are.
pub(super) fn exact(value: f64) -> String {
    if value.fract() == 0.0 && value.abs() < 1e15 { format!("{value:.0}") } else { digits(value) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short_and_right() {
        for (value, text) in [
            (0.0, "0"),
            (0.1 + 0.2, "0.3"),
            (0.000_25, "0.00025"),
            (12.5, "12.5"),
            (999.0, "999"),
            (1_000.0, "1k"),
            (65_536.0, "65.5k"),
            (2_500_000.0, "2.5M"),
            (-40.0, "-40"),
        ] {
            assert_eq!(short(value), text);
        }
        assert_eq!((exact(4_788.0), exact(0.123_4)), ("4788".into(), "0.123".into()));
    }
}
