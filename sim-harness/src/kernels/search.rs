//! A search for the lowest value that needs no derivative.
//!
//! Nelder and Mead, "A simplex method for function minimization", 1965.

use super::form::{CONSTANTS, Constants};

/// The point of the lowest value found from `start` on, with first steps of
/// `step` along each axis.
pub(super) fn minimum(
    start: Constants,
    step: Constants,
    evaluations: u32,
    value: impl Fn(&Constants) -> f64,
) -> Constants {
    let mut simplex: Vec<(f64, Constants)> = vec![(value(&start), start)];
    for axis in 0..CONSTANTS {
        let mut point = start;
        if let (Some(at), Some(by)) = (point.get_mut(axis), step.get(axis)) {
            *at += by;
        }
        simplex.push((value(&point), point));
    }
    let mut spent = CONSTANTS as u32 + 1;
    while spent < evaluations {
        simplex.sort_by(|a, b| a.0.total_cmp(&b.0));
        let (Some(best), Some(worst)) = (simplex.first().copied(), simplex.pop()) else { break };
        let second = simplex.last().map_or(worst.0, |point| point.0);
        if (worst.0 - best.0).abs() < 1e-7 {
            simplex.push(worst);
            break;
        }
        let mut centre = [0.0; CONSTANTS];
        for (_, point) in &simplex {
            for (at, part) in centre.iter_mut().zip(point) {
                *at += part / CONSTANTS as f64;
            }
        }
        // The point at `weight` from the centre towards the worst one.
        let along = |weight: f64| {
            let mut point = centre;
            for (at, other) in point.iter_mut().zip(&worst.1) {
                *at += weight * (other - *at);
            }
            (value(&point), point)
        };
        let reflected = along(-1.0);
        spent += 1;
        let next = if reflected.0 < best.0 {
            spent += 1;
            let expanded = along(-2.0);
            if expanded.0 < reflected.0 { expanded } else { reflected }
        } else if reflected.0 < second {
            reflected
        } else {
            spent += 1;
            let inside = along(if reflected.0 < worst.0 { -0.5 } else { 0.5 });
            if inside.0 < worst.0.min(reflected.0) {
                inside
            } else {
                for entry in &mut simplex {
                    let mut point = entry.1;
                    for (at, other) in point.iter_mut().zip(&best.1) {
                        *at = f64::midpoint(*at, *other);
                    }
                    *entry = (value(&point), point);
                }
                spent += CONSTANTS as u32;
                let mut point = worst.1;
                for (at, other) in point.iter_mut().zip(&best.1) {
                    *at = f64::midpoint(*at, *other);
                }
                (value(&point), point)
            }
        };
        simplex.push(next);
    }
    simplex.iter().min_by(|a, b| a.0.total_cmp(&b.0)).map_or(start, |point| point.1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crooked_valley_is_followed_to_its_end() {
        let value = |p: &Constants| {
            let [a, b, rest @ ..] = p;
            let (near, bend) = (1.0 - a, b - a * a);
            let rest: f64 = rest.iter().map(|x| (x - 2.0) * (x - 2.0)).sum();
            near * near + 10.0 * bend * bend + rest
        };
        let found = minimum([0.0; CONSTANTS], [0.5; CONSTANTS], 20_000, value);
        assert!(value(&found) < 0.05, "{} at {found:?}", value(&found));
        assert!(value(&[0.0; CONSTANTS]) > 10.0);
    }
}
