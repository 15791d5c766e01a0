//! A plot as a figure of HTML with an inline SVG.
//!
//! Its texts are 13 units high in a drawing that is 480 wide, so they are read
//! on a phone, where it shrinks to three quarters, as on a screen, where it
//! stands beside others. Colours and dashes come from the page's style sheet:
//! whoever does not see the one sees the other. The legend is text beside the
//! drawing, which may wrap.

use std::fmt::Write as _;

use super::number::{exact, short};
use super::page::escape;
use super::plot::{Plot, Point, Series, Shape};
use super::scale::Scale;

/// Series styles that the page's style sheet has.
pub(super) const STYLES: usize = 8;

const WIDTH: f64 = 480.0;
const HEIGHT: f64 = 300.0;
const LEFT: f64 = 52.0;
const RIGHT: f64 = 468.0;
const TOP: f64 = 36.0;
const BOTTOM: f64 = 252.0;
/// A letter of a label is about so wide.
const LETTER: f64 = 7.2;
/// With more bars than this their values would run into each other.
const VALUES: usize = 14;

struct Frame<'a> {
    plot: &'a Plot,
    x: Scale,
    y: Scale,
}

/// The figure.
pub(super) fn figure(plot: &Plot) -> String {
    let Plot { id, title, about, .. } = plot;
    let (title, about) = (escape(title), escape(about));
    let mut out = format!(
        "<figure id=\"plot-{id}\">\n<figcaption>{title}</figcaption>\n\
         <svg class=\"plot\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" \
         aria-labelledby=\"{id}-t {id}-d\">\n\
         <title id=\"{id}-t\">{title}</title><desc id=\"{id}-d\">{about}</desc>\n"
    );
    if plot.is_empty() {
        let (x, y) = (WIDTH / 2.0, HEIGHT / 2.0);
        let _ = writeln!(out, "<text x=\"{x}\" y=\"{y}\" text-anchor=\"middle\">no data</text>");
    } else {
        Frame::new(plot).draw(&mut out);
    }
    out.push_str("</svg>\n");
    legend(plot, &mut out);
    let _ = writeln!(out, "<p>{about}</p>\n</figure>");
    out
}

fn legend(plot: &Plot, out: &mut String) {
    if plot.series.len() < 2 {
        return;
    }
    out.push_str("<ul class=\"legend\">\n");
    for series in &plot.series {
        let mark = match series.shape {
            Shape::Line | Shape::Thin | Shape::Dots => "<path d=\"M1 6H29\"/>",
            Shape::Steps | Shape::Bars => "<rect x=\"1\" y=\"1\" width=\"28\" height=\"10\"/>",
        };
        let (class, name) = (class(series), escape(&series.name));
        let _ = writeln!(
            out,
            "<li><svg class=\"key {class}\" viewBox=\"0 0 30 12\" aria-hidden=\"true\">{mark}</svg>\
             {name}</li>"
        );
    }
    out.push_str("</ul>\n");
}

fn class(series: &Series) -> String {
    let shape = match series.shape {
        Shape::Line => "line",
        Shape::Dots => "line dots",
        Shape::Thin => "line thin",
        Shape::Steps => "area",
        Shape::Bars => "bar",
    };
    format!("{shape} s{}", series.style % STYLES)
}

impl<'a> Frame<'a> {
    fn new(plot: &'a Plot) -> Self {
        let points = || plot.series.iter().flat_map(|series| &series.points);
        let rules = plot.rules.iter().map(|rule| rule.x);
        let xs = points().map(|point| point.x).chain(rules);
        let x = if !plot.x.names.is_empty() {
            Scale::places(plot.x.names.len())
        } else if plot.x.log {
            Scale::log(xs, 5)
        } else {
            Scale::tight(xs, plot.x.from_zero, 6)
        };
        let ends = |point: &Point| {
            let (low, high) = point.range.unzip();
            [point.y, low, high]
        };
        let ys = points().flat_map(ends).flatten();
        let y = if plot.y.log { Scale::log(ys, 8) } else { Scale::linear(ys, plot.y.from_zero, 6) };
        let y = if plot.y.whole { y.whole() } else { y };
        Self { plot, x, y }
    }

    fn across(&self, x: f64) -> f64 {
        LEFT + (RIGHT - LEFT) * self.x.place(x)
    }

    fn up(&self, y: f64) -> f64 {
        BOTTOM - (BOTTOM - TOP) * self.y.place(y)
    }

    fn draw(&self, out: &mut String) {
        self.axes(out);
        // Outlines lie over each other: whatever is thin or small comes last.
        let rank = |series: &&Series| match series.shape {
            Shape::Steps | Shape::Bars => 0,
            Shape::Thin => 1,
            Shape::Line | Shape::Dots => 2,
        };
        let mut series: Vec<&Series> = self.plot.series.iter().collect();
        series.sort_by_key(rank);
        let bars = series.iter().filter(|one| one.shape == Shape::Bars).count();
        let mut nth = 0;
        for one in series {
            let _ = write!(out, "<g class=\"{}\">", class(one));
            match one.shape {
                Shape::Line | Shape::Thin => self.line(one, out),
                Shape::Dots => {
                    self.line(one, out);
                    self.dots(one, out);
                }
                Shape::Steps => self.steps(one, out),
                Shape::Bars => {
                    self.bars(one, (nth, bars), out);
                    nth += 1;
                }
            }
            out.push_str("</g>\n");
        }
        self.rules(out);
    }

    fn axes(&self, out: &mut String) {
        for &tick in &self.y.ticks {
            let (y, label) = (self.up(tick), short(tick));
            let text = y + 4.5;
            let _ = writeln!(
                out,
                "<path class=\"grid\" d=\"M{LEFT} {y:.1}H{RIGHT}\"/><text x=\"46\" y=\"{text:.1}\" \
                 text-anchor=\"end\">{label}</text>"
            );
        }
        let _ = writeln!(out, "<path class=\"axis\" d=\"M{LEFT} {BOTTOM}H{RIGHT}\"/>");
        if self.y.ticks.first().is_some_and(|first| *first < 0.0) {
            let zero = self.up(0.0);
            let _ = writeln!(out, "<path class=\"axis\" d=\"M{LEFT} {zero:.1}H{RIGHT}\"/>");
        }
        let named = !self.plot.x.names.is_empty();
        let room = (RIGHT - LEFT) / self.x.ticks.len().max(1) as f64;
        let wide = self.plot.x.names.iter().any(|name| letters(name) * LETTER > room);
        for (nth, &tick) in self.x.ticks.iter().enumerate() {
            let x = self.across(tick);
            let name = self.plot.x.names.get(nth).map_or_else(|| short(tick), |name| escape(name));
            // Names that have no room beside each other stand in two rows.
            let y = if wide && nth % 2 == 1 { 282.0 } else { 268.0 };
            // A number at the edge stays within the drawing.
            let anchor = if !named && x > RIGHT - 12.0 { "end" } else { "middle" };
            let x_text = if anchor == "end" { WIDTH - 2.0 } else { x };
            if !named {
                let _ = write!(out, "<path class=\"axis\" d=\"M{x:.1} {BOTTOM}v4\"/>");
            }
            let _ = writeln!(
                out,
                "<text x=\"{x_text:.1}\" y=\"{y}\" text-anchor=\"{anchor}\">{name}</text>"
            );
        }
        let (x, y) = (escape(&self.plot.x.label), escape(&self.plot.y.label));
        let _ = writeln!(out, "<text class=\"label\" x=\"4\" y=\"14\">{y}</text>");
        if !x.is_empty() {
            let _ = writeln!(
                out,
                "<text class=\"label\" x=\"{RIGHT}\" y=\"296\" text-anchor=\"end\">{x}</text>"
            );
        }
    }

    fn line(&self, series: &Series, out: &mut String) {
        let mut path = String::new();
        let mut broken = true;
        for point in &series.points {
            let Some(y) = point.y else {
                broken = true;
                continue;
            };
            // A point between two gaps is a dot: a line of no length has round ends.
            let (open, close) = if broken { ('M', "h0") } else { ('L', "") };
            let _ = write!(path, "{open}{:.1} {:.1}{close}", self.across(point.x), self.up(y));
            broken = false;
        }
        let _ = write!(out, "<path d=\"{path}\"/>");
    }

    fn dots(&self, series: &Series, out: &mut String) {
        for point in &series.points {
            let Some(y) = point.y else { continue };
            let (x, y) = (self.across(point.x), self.up(y));
            let _ = write!(out, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3.5\"/>");
            self.range(x, point, out);
        }
    }

    fn steps(&self, series: &Series, out: &mut String) {
        let Some(first) = series.points.first() else { return };
        let mut path = format!("M{:.1} {BOTTOM}", self.across(first.x));
        for point in &series.points {
            let (x, y) = (self.across(point.x), self.up(point.y.unwrap_or(0.0)));
            let _ = write!(path, "H{x:.1}V{y:.1}");
        }
        let _ = write!(out, "<path d=\"{path}V{BOTTOM}Z\"/>");
    }

    /// The `nth` of so many bars at each place.
    fn bars(&self, series: &Series, (nth, all): (usize, usize), out: &mut String) {
        let room = (RIGHT - LEFT) / self.plot.x.names.len().max(1) as f64;
        let width = (room * 0.8 / all.max(1) as f64).min(64.0);
        let count = all * self.plot.x.names.len();
        for point in &series.points {
            let Some(y) = point.y else { continue };
            let left = self.across(point.x) + width * (nth as f64 - all as f64 / 2.0);
            let (base, end) = (self.up(0.0), self.up(y));
            let (top, height) = (base.min(end), (base - end).abs());
            let inner = width * 0.92;
            let _ = write!(
                out,
                "<rect x=\"{left:.1}\" y=\"{top:.1}\" width=\"{inner:.1}\" height=\"{height:.1}\"/>"
            );
            let middle = left + inner / 2.0;
            self.range(middle, point, out);
            if count <= VALUES {
                let over = point.range.map_or(top, |(_, high)| self.up(high).min(top)) - 5.0;
                let value = exact(y);
                let _ = write!(
                    out,
                    "<text x=\"{middle:.1}\" y=\"{over:.1}\" text-anchor=\"middle\">{value}</text>"
                );
            }
        }
    }

    /// A point's range, as a line with ends.
    fn range(&self, x: f64, point: &Point, out: &mut String) {
        let Some((low, high)) = point.range else { return };
        let (low, high, left) = (self.up(low), self.up(high), x - 5.0);
        let _ = write!(
            out,
            "<path class=\"range\" d=\"M{left:.1} {high:.1}h10M{x:.1} {high:.1}V{low:.1}M{left:.1} \
             {low:.1}h10\"/>"
        );
    }

    fn rules(&self, out: &mut String) {
        for (nth, rule) in self.plot.rules.iter().enumerate() {
            let x = self.across(rule.x);
            let label = escape(&rule.label);
            // Beside the line, where there is room; each in a row of its own.
            let right = x + letters(&rule.label) * LETTER + 6.0 < WIDTH;
            let (anchor, at) = if right { ("start", x + 4.0) } else { ("end", x - 4.0) };
            let y = TOP + 10.0 + 16.0 * nth as f64;
            let _ = writeln!(
                out,
                "<path class=\"rule\" d=\"M{x:.1} {TOP}V{BOTTOM}\"/><text class=\"over\" \
                 x=\"{at:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{label}</text>"
            );
        }
    }
}

fn letters(text: &str) -> f64 {
    text.chars().count() as f64
}
