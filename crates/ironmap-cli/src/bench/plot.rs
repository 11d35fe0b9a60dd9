//! The results as a picture: bars of the ratio to the first target, a group for each combination.

use std::path::Path;

use ironmap::{Error, Result};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::report::Row;

const COLOURS: [RGBColor; 5] = [
    RGBColor(90, 90, 90),
    RGBColor(221, 132, 82),
    RGBColor(76, 114, 176),
    RGBColor(85, 168, 104),
    RGBColor(196, 78, 82),
];

/// All in pixels. About as wide as a character is; the fonts of the viewer are unknown.
const CHARACTER: u32 = 7;
const MARGIN: u32 = 12;
const LINE: u32 = 20;
/// For the figures of the vertical axis.
const AXIS: u32 = 68;
const BAR: u32 = 44;
const LEAST_GROUP: u32 = 260;
const LEAST_HEIGHT: u32 = 420;

/// Draws the rows as SVG.
pub(super) fn svg(rows: &[Row], path: &Path) -> Result<()> {
    draw(rows, path).map_err(|error| Error::invalid(format!("{}: {error}", path.display())))
}

fn draw(rows: &[Row], path: &Path) -> std::result::Result<(), Box<dyn std::error::Error>> {
    let mut labels: Vec<String> = Vec::new();
    let mut groups: Vec<(String, Vec<&Row>)> = Vec::new();
    for row in rows {
        let group =
            format!("{} {} {} QD{} x{}", row.rw, row.bs, row.engine, row.iodepth, row.numjobs);
        match groups.iter_mut().find(|(name, _)| *name == group) {
            Some((_, rows)) => rows.push(row),
            None => groups.push((group, vec![row])),
        }
        if !labels.contains(&row.label) {
            labels.push(row.label.clone());
        }
    }
    let counted = rows.iter().any(|row| row.instructions.is_some());
    let value = |row: &Row| if counted { row.instructions.unwrap_or_default() } else { row.ratio };
    let top = rows.iter().map(value).fold(1.0, f64::max) * 1.15;
    let step = labels.len() as f64 + 1.0;
    let widest = |texts: &mut dyn Iterator<Item = &String>| {
        texts.map(|text| CHARACTER * text.chars().count() as u32).max().unwrap_or(0)
    };
    let names = widest(&mut groups.iter().map(|(name, _)| name)) + 2 * MARGIN;
    let group_width = names.max(BAR * (labels.len() as u32 + 1)).max(LEAST_GROUP);
    let legend_width = widest(&mut labels.iter()) + 4 * MARGIN;
    let plot_width = AXIS + MARGIN + group_width * groups.len() as u32;
    let height = LEAST_HEIGHT.max(2 * MARGIN + LINE * labels.len() as u32);
    let root = SVGBackend::new(path, (plot_width + legend_width, height)).into_drawing_area();
    root.fill(&WHITE)?;
    let (plot, legend) = root.split_horizontally(plot_width);
    let mut chart = ChartBuilder::on(&plot)
        .margin(MARGIN)
        .caption(
            if counted { "instructions a request" } else { "speed relative to the first target" },
            ("sans-serif", 18),
        )
        .x_label_area_size(LINE + MARGIN)
        .y_label_area_size(AXIS - MARGIN)
        .build_cartesian_2d(0.0..step * groups.len() as f64, 0.0..top)?;
    // The axis has no names of its own: it would choose places for them.
    chart.configure_mesh().disable_x_mesh().x_labels(0).label_style(("sans-serif", 12)).draw()?;
    let centred = |vertical| {
        let style = TextStyle::from(("sans-serif", 12).into_font());
        style.pos(Pos::new(HPos::Center, vertical))
    };
    for (at, label) in labels.iter().enumerate() {
        let colour = COLOURS[at % COLOURS.len()].filled();
        for (group, (_, rows)) in groups.iter().enumerate() {
            let left = group as f64 * step + 0.5 + at as f64;
            for row in rows.iter().filter(|row| row.label == *label) {
                let bar = Rectangle::new([(left + 0.1, 0.0), (left + 0.9, value(row))], colour);
                let figure = format!("{:.2}", value(row));
                let above = (left + 0.5, value(row) + top * 0.01);
                chart.draw_series([bar])?;
                chart.draw_series([Text::new(figure, above, centred(VPos::Bottom))])?;
            }
        }
        let y = (2 * MARGIN + LINE * at as u32) as i32;
        legend.draw(&Rectangle::new([(MARGIN as i32, y), (2 * MARGIN as i32, y + 12)], colour))?;
        legend.draw(&Text::new(label.as_str(), (3 * MARGIN as i32, y), ("sans-serif", 12)))?;
    }
    for (group, (name, _)) in groups.iter().enumerate() {
        let centre = chart.plotting_area().map_coordinate(&((group as f64 + 0.5) * step, 0.0));
        let below = (centre.0, centre.1 + MARGIN as i32);
        root.draw(&Text::new(name.as_str(), below, centred(VPos::Top)))?;
    }
    root.present()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An element of the picture: a bar or the colour of a label, or a text and where it is anchored.
    #[derive(Debug)]
    struct Element {
        x: f64,
        width: f64,
        text: String,
        fill: String,
    }

    fn elements(svg: &str, kind: &str) -> Vec<Element> {
        let begin = format!("<{kind} ");
        let parts = svg.split(&begin).skip(1).map(|part| {
            let (head, rest) = part.split_once('>').unwrap();
            let attribute = |name: &str| {
                let value = head.split(&format!("{name}=\"")).nth(1)?.split('"').next()?;
                Some(value.to_owned())
            };
            let number = |name| attribute(name).and_then(|value| value.parse().ok());
            let text = rest.split('<').next().unwrap().trim().to_owned();
            let (x, width) = (number("x").unwrap_or(0.0), number("width").unwrap_or(0.0));
            Element { x, width, text, fill: attribute("fill").unwrap_or_default() }
        });
        parts.collect()
    }

    /// Each group has its name below its own bars, and no two names meet; each bar has its figure above it; the legend is beside all bars.
    #[test]
    fn every_group_is_named_and_the_legend_hides_no_bar() {
        let labels = ["raw", "kernel", "vol simple=1", "vol simple=0"];
        for groups in 1..=5 {
            let rows: Vec<Row> = (0..groups * labels.len())
                .map(|at| Row {
                    label: labels[at % labels.len()].to_owned(),
                    rw: "randread",
                    engine: "io_uring".to_owned(),
                    iodepth: 1 << (at / labels.len()),
                    numjobs: 8,
                    bs: 4096,
                    ratio: 0.25 + at as f64 / 10.0,
                    ..Row::default()
                })
                .collect();
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("plot.svg");
            svg(&rows, &path).unwrap();
            let picture = std::fs::read_to_string(&path).unwrap();
            let colours = COLOURS.map(|RGBColor(r, g, b)| format!("#{r:02X}{g:02X}{b:02X}"));
            let mut bars = elements(&picture, "rect");
            bars.retain(|bar| colours.contains(&bar.fill) && bar.width != f64::from(MARGIN));
            bars.sort_by(|a, b| a.x.total_cmp(&b.x));
            assert_eq!(bars.len(), rows.len());
            let texts = elements(&picture, "text");
            let mut end = 0.0;
            for (group, bars) in bars.chunks(labels.len()).enumerate() {
                let name = format!("randread 4096 io_uring QD{} x8", 1 << group);
                let found: Vec<_> = texts.iter().filter(|text| text.text == name).collect();
                let [found] = &found[..] else { panic!("{name}: {found:?}") };
                let own = bars[0].x..bars[bars.len() - 1].x + bars[0].width;
                assert!(own.contains(&found.x), "{found:?} {own:?}");
                let half = name.len() as f64 * f64::from(CHARACTER) / 2.0;
                assert!(found.x - half >= end, "{name} meets the label to its left");
                end = found.x + half;
            }
            for (bar, row) in bars.iter().zip(&rows) {
                let figure = format!("{:.2}", row.ratio);
                let above = |text: &&Element| (bar.x..bar.x + bar.width).contains(&text.x);
                assert!(texts.iter().filter(above).any(|text| text.text == figure), "{figure}");
            }
            let right = bars.iter().map(|bar| bar.x + bar.width).fold(end, f64::max);
            for label in labels {
                let found: Vec<_> = texts.iter().filter(|text| text.text == label).collect();
                assert!(found.len() == 1 && found[0].x > right, "{label}: {found:?}");
            }
        }
    }
}
