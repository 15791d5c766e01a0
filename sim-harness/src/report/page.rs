//! A page: sections with tables, plots and texts, as HTML, JSON and CSV.

use std::fmt::Write as _;

use serde_json::Value;

use super::plot::Plot;
use super::{Table, csv, svg};

/// A file to write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct File {
    /// Its name.
    pub name: String,
    /// What is in it.
    pub text: String,
}

/// A report.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Page {
    /// Its title.
    pub title: String,
    /// What it is about, in a sentence or two.
    pub lead: String,
    /// Its parts.
    pub sections: Vec<Section>,
}

/// A part of a page.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Section {
    /// What it is about.
    pub heading: String,
    /// What is in it.
    pub blocks: Vec<Block>,
}

/// A piece of a section.
#[derive(Clone, Debug, PartialEq)]
pub enum Block {
    /// A paragraph.
    Words(String),
    /// A table.
    Table(Table),
    /// A plot. Those in a row stand side by side where there is room.
    Plot(Plot),
    /// A text to copy, line by line; carries what it is.
    Code(String, String),
}

/// A text that stands for itself, within an element or an attribute.
pub(super) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            // HTML has no other control characters.
            c if c.is_control() && c != '\n' && c != '\t' => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

impl Page {
    fn blocks(&self) -> impl Iterator<Item = &Block> {
        self.sections.iter().flat_map(|section| &section.blocks)
    }

    /// All plots.
    pub fn plots(&self) -> impl Iterator<Item = &Plot> {
        self.blocks().filter_map(|block| match block {
            Block::Plot(plot) => Some(plot),
            _ => None,
        })
    }

    /// The page in one file: it asks the network for nothing and runs nothing.
    pub fn html(&self) -> String {
        let (title, lead) = (escape(&self.title), escape(&self.lead));
        let style = STYLE;
        let mut out = format!(
            "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
             <title>{title}</title>\n<style>\n{style}</style>\n</head>\n<body>\n\
             <header>\n<h1>{title}</h1>\n<p>{lead}</p>\n</header>\n<main>\n"
        );
        for section in &self.sections {
            let _ = writeln!(out, "<section>\n<h2>{}</h2>", escape(&section.heading));
            let mut in_row = false;
            for block in &section.blocks {
                let plot = matches!(block, Block::Plot(_));
                if plot != in_row {
                    out.push_str(if plot { "<div class=\"plots\">\n" } else { "</div>\n" });
                    in_row = plot;
                }
                block.html(&mut out);
            }
            out.push_str(if in_row { "</div>\n</section>\n" } else { "</section>\n" });
        }
        out.push_str("</main>\n</body>\n</html>\n");
        out
    }

    /// `report.html`; `report.json`, with `numbers` and the plots' data;
    /// `plots.csv`; and a CSV file for each table.
    pub fn files(&self, numbers: Value) -> Vec<File> {
        let file = |name: &str, text: String| File { name: name.into(), text };
        let plots: Vec<Value> = self.plots().map(Plot::json).collect();
        let json = serde_json::json!({"report": numbers, "plots": plots});
        let mut lines = String::from("plot,series,x,y,low,high\n");
        self.plots().for_each(|plot| plot.lines(&mut lines));
        let mut files = vec![
            file("report.html", self.html()),
            file("report.json", json.to_string() + "\n"),
            file("plots.csv", lines),
        ];
        for block in self.blocks() {
            if let Block::Table(table) = block {
                files.push(file(&format!("{}.csv", table.id), csv::table(table)));
            }
        }
        files
    }
}

impl Block {
    fn html(&self, out: &mut String) {
        match self {
            Self::Words(words) => {
                let _ = writeln!(out, "<p>{}</p>", escape(words));
            }
            Self::Plot(plot) => out.push_str(&svg::figure(plot)),
            Self::Code(what, text) => {
                let (what, text) = (escape(what), escape(text));
                let _ = writeln!(
                    out,
                    "<details>\n<summary>{what}</summary>\n<pre tabindex=\"0\">{text}</pre>\n\
                     </details>"
                );
            }
            Self::Table(table) => html_table(table, out),
        }
    }
}

/// Wider than a phone: it scrolls by itself, also by keyboard.
fn html_table(table: &Table, out: &mut String) {
    let (id, caption) = (table.id, escape(&table.caption));
    let _ = writeln!(
        out,
        "<h3 id=\"caption-{id}\">{caption}</h3>\n\
         <div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-labelledby=\"caption-{id}\">\n\
         <table id=\"table-{id}\" aria-labelledby=\"caption-{id}\">\n<thead>\n<tr>"
    );
    for head in table.full_heads() {
        let _ = writeln!(out, "<th scope=\"col\">{}</th>", escape(&head));
    }
    out.push_str("</tr>\n</thead>\n<tbody>\n");
    for row in &table.rows {
        out.push_str("<tr>");
        for (nth, cell) in row.iter().enumerate() {
            let cell = escape(cell);
            let _ = if nth == 0 {
                write!(out, "<th scope=\"row\">{cell}</th>")
            } else {
                write!(out, "<td>{cell}</td>")
            };
        }
        out.push_str("</tr>\n");
    }
    out.push_str("</tbody>\n</table>\n</div>\n");
}

/// Colours are those of Okabe and Ito, which most people tell apart, lighter on
/// a dark ground; dashes tell apart what colours do not.
const STYLE: &str = include_str!("style.css");
