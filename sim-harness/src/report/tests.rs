//! Figures and pages whose marks can be worked out by hand.

use super::*;

const HOSTILE: &str = "<script>\"a' & b</script>\u{1b}";

fn bars() -> Plot {
    let point = |x, y: Option<f64>, range| Point { x, y, range };
    Plot {
        id: "gpus",
        title: HOSTILE.into(),
        about: "About it.".into(),
        x: Axis::names("", vec!["one".into(), HOSTILE.into()]),
        y: Axis::zero("GPUs"),
        series: vec![Series {
            name: HOSTILE.into(),
            style: 0,
            shape: Shape::Bars,
            points: vec![
                point(0.0, Some(40.0), Some((30.0, 60.0))),
                point(1.0, Some(20.0), None),
                point(1.0, None, None),
            ],
        }],
        rules: vec![Rule { x: 0.5, label: HOSTILE.into() }],
    }
}

#[test]
fn bars_are_as_high_as_their_values() {
    let figure = svg::figure(&bars());
    // The axis goes from 0 at 252 to 60 at 36: 3.6 units for each GPU.
    assert!(figure.contains("y=\"108.0\" width=\"58.9\" height=\"144.0\""), "{figure}");
    assert!(figure.contains("y=\"180.0\" width=\"58.9\" height=\"72.0\""), "{figure}");
    // The range from 30 to 60 at the middle of the bar, and the value above it.
    assert!(figure.contains("36.0V144.0M"), "{figure}");
    assert!(figure.contains("y=\"31.0\" text-anchor=\"middle\">40</text>"), "{figure}");
    assert_eq!(figure.matches("<rect").count(), 2);
}

#[test]
fn names_are_escaped_everywhere() {
    let table = Table::new("t", HOSTILE, &[HOSTILE], vec![vec![HOSTILE.into()]]);
    let blocks = vec![
        Block::Plot(bars()),
        Block::Table(table),
        Block::Words(HOSTILE.into()),
        Block::Code(HOSTILE.into(), HOSTILE.into()),
    ];
    let sections = vec![Section { heading: HOSTILE.into(), blocks }];
    let page = Page { title: HOSTILE.into(), lead: HOSTILE.into(), sections };
    let html = page.html();
    let safe = "&lt;script&gt;&quot;a&#39; &amp; b&lt;/script&gt;\u{fffd}";
    assert!(!html.contains("<script") && !html.contains('\u{1b}'));
    assert_eq!(html.matches(safe).count(), html.matches("script&gt;\u{fffd}").count());
    assert!(html.matches(safe).count() >= 13, "{}", html.matches(safe).count());
}

#[test]
fn files_have_the_numbers_of_the_plots() {
    let blocks = vec![Block::Plot(bars())];
    let sections = vec![Section { heading: "h".into(), blocks }];
    let page = Page { title: "t".into(), lead: String::new(), sections };
    let files = page.files(serde_json::json!({"gpus": 40}));
    let text = |name: &str| &files.iter().find(|file| file.name == name).unwrap().text;
    let csv = text("plots.csv");
    assert!(csv.starts_with("plot,series,x,y,low,high\ngpus,"), "{csv}");
    assert!(csv.contains(",one,40,30,60\n"), "{csv}");
    let json: serde_json::Value = serde_json::from_str(text("report.json")).unwrap();
    assert_eq!(json["report"]["gpus"], 40);
    let points = &json["plots"][0]["series"][0]["points"];
    assert_eq!(*points, serde_json::json!([[0.0, 40.0, 30.0, 60.0], [1.0, 20.0], [1.0, null]]));
    assert_eq!(files, page.files(serde_json::json!({"gpus": 40})));
}

#[test]
fn a_line_has_gaps_and_an_outline_steps() {
    let points = [(0.0, Some(0.0)), (1.0, Some(10.0)), (2.0, None), (4.0, Some(5.0))];
    let points = points.map(|(x, y)| Point::new(x, y)).to_vec();
    let series =
        |shape, name: &str| Series { name: name.into(), style: 9, shape, points: points.clone() };
    let plot = Plot {
        id: "p",
        title: "t".into(),
        about: "a".into(),
        x: Axis::zero("x"),
        y: Axis::zero("y"),
        series: vec![series(Shape::Line, "l"), series(Shape::Steps, "s")],
        rules: Vec::new(),
    };
    let figure = svg::figure(&plot);
    // 104 units for each of x, 21.6 for each of y.
    assert!(figure.contains("d=\"M52.0 252.0h0L156.0 36.0M468.0 144.0h0\""), "{figure}");
    let outline = "d=\"M52.0 252H52.0V252.0H156.0V36.0H260.0V252.0H468.0V144.0V252Z\"";
    assert!(figure.contains(outline), "{figure}");
    assert!(figure.contains("class=\"line s1\"") && figure.contains("class=\"area s1\""));
    let none = Plot { series: Vec::new(), ..plot };
    assert!(svg::figure(&none).contains("no data"));
}
