//! What a plot shows.

use serde_json::{Value, json};

/// A plot: series over two axes.
#[derive(Clone, Debug, PartialEq)]
pub struct Plot {
    /// Names it in the files: letters, digits and dashes. Once a page.
    pub id: &'static str,
    /// Its title.
    pub title: String,
    /// What it shows and how to read it.
    pub about: String,
    /// The horizontal axis.
    pub x: Axis,
    /// The vertical axis.
    pub y: Axis,
    /// What is drawn, the first one first.
    pub series: Vec<Series>,
    /// Vertical lines.
    pub rules: Vec<Rule>,
}

/// One axis.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Axis {
    /// What it measures, with its unit.
    pub label: String,
    /// By powers: values of 0 and less are at its edge.
    pub log: bool,
    /// It begins at 0, if it is not by powers.
    pub from_zero: bool,
    /// It counts: labels are whole numbers.
    pub whole: bool,
    /// Its values are places 0, 1, … with these names.
    pub names: Vec<String>,
}

/// A vertical line.
#[derive(Clone, Debug, PartialEq)]
pub struct Rule {
    /// Where.
    pub x: f64,
    /// What it marks.
    pub label: String,
}

/// Points that belong together.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    /// Its name. Not twice in a plot.
    pub name: String,
    /// Its colour and dashes; series of one kind share theirs.
    pub style: usize,
    /// How it is drawn.
    pub shape: Shape,
    /// In order of x.
    pub points: Vec<Point>,
}

/// How a series is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// A line.
    Line,
    /// A thin line: less than another of the same style.
    Thin,
    /// A line through dots, for few points.
    Dots,
    /// A filled outline in steps: each point's height holds from its x to the
    /// next one's. The last point only ends it.
    Steps,
    /// A bar at each place, beside those of the other series, with its value.
    Bars,
}

/// A point.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// Along.
    pub x: f64,
    /// Up; nothing where there is no such value: a line has a gap.
    pub y: Option<f64>,
    /// From where to where it may be.
    pub range: Option<(f64, f64)>,
}

impl Point {
    /// A point without a range.
    pub fn new(x: f64, y: impl Into<Option<f64>>) -> Self {
        Self { x, y: y.into(), range: None }
    }
}

impl Axis {
    /// From about the smallest value on.
    pub fn new(label: &str) -> Self {
        Self { label: label.into(), ..Self::default() }
    }

    /// From 0 on.
    pub fn zero(label: &str) -> Self {
        Self { from_zero: true, ..Self::new(label) }
    }

    /// A count, from 0 on.
    pub fn count(label: &str) -> Self {
        Self { whole: true, ..Self::zero(label) }
    }

    /// By powers.
    pub fn log(label: &str) -> Self {
        Self { log: true, ..Self::new(label) }
    }

    /// Named places.
    pub fn names(label: &str, names: Vec<String>) -> Self {
        Self { names, ..Self::new(label) }
    }
}

impl Plot {
    /// Nothing can be drawn.
    pub fn is_empty(&self) -> bool {
        !self.series.iter().flat_map(|series| &series.points).any(|point| point.y.is_some())
    }

    /// All its data.
    pub fn json(&self) -> Value {
        let point = |point: &Point| match point.range {
            None => json!([point.x, point.y]),
            Some((low, high)) => json!([point.x, point.y, low, high]),
        };
        let series = self.series.iter().map(|series| {
            let points: Vec<Value> = series.points.iter().map(point).collect();
            json!({"name": series.name, "points": points})
        });
        let rules = self.rules.iter().map(|rule| json!({"x": rule.x, "label": rule.label}));
        let mut plot = json!({
            "id": self.id,
            "title": self.title,
            "x": self.x.label,
            "y": self.y.label,
            "series": series.collect::<Vec<_>>(),
            "rules": rules.collect::<Vec<_>>(),
        });
        if !self.x.names.is_empty()
            && let Some(plot) = plot.as_object_mut()
        {
            plot.insert("places".into(), self.x.names.clone().into());
        }
        plot
    }

    /// All its data as lines `plot,series,x,y,low,high`. A place has its name.
    pub(super) fn lines(&self, out: &mut String) {
        for series in &self.series {
            for point in &series.points {
                let named = self.x.names.get(point.x as usize).filter(|_| point.x >= 0.0);
                let x = named.cloned().unwrap_or_else(|| point.x.to_string());
                let number = |number: Option<f64>| number.map_or(String::new(), |n| n.to_string());
                super::csv::line(
                    out,
                    [
                        self.id,
                        &series.name,
                        &x,
                        &number(point.y),
                        &number(point.range.map(|(low, _)| low)),
                        &number(point.range.map(|(_, high)| high)),
                    ],
                );
            }
        }
    }
}
