//! The results as a picture: bars of the ratio to the first target, a group for each combination.

use std::path::Path;

use ironmap::{Error, Result};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::report::Row;

/// The colours of the first labels; `colour` computes those of further labels.
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

/// The colour of a label. No two of a picture have the same.
fn colour(at: usize) -> RGBColor {
    COLOURS.get(at).copied().unwrap_or_else(|| {
        // Hues by the golden angle are never the same; two lightnesses keep neighbours apart.
        let hue = (at as f64 * 0.381_966).fract();
        let (red, green, blue) =
            HSLColor(hue, 0.5, if at.is_multiple_of(2) { 0.35 } else { 0.65 }).rgb();
        RGBColor(red, green, blue)
    })
}

/// A label in words: the bench's own names say nothing to a stranger.
fn in_words(label: &str) -> String {
    let (kind, rest) = label.split_once(' ').unwrap_or((label, ""));
    let what = match kind {
        "raw" => "the raw device",
        "kernel" => "the kernel",
        "host" => "ironmap, mounted file system",
        "vol" => "ironmap, unmounted volume",
        other => other,
    };
    let rest = rest.replace("simple=1", "simple path").replace("simple=0", "general path");
    if rest.is_empty() { what.to_owned() } else { format!("{what}, {rest}") }
}

/// A combination of options in words.
fn combination(row: &Row) -> String {
    let work = match row.rw {
        "read" => "reads in order",
        "write" => "writes in order",
        "randread" => "random reads",
        "randwrite" => "random overwrites",
        other => other,
    };
    let Row { bs, engine, iodepth, numjobs, .. } = row;
    let size =
        if bs.is_multiple_of(1024) { format!("{} KiB", bs / 1024) } else { format!("{bs} bytes") };
    let jobs = if *numjobs == 1 { String::new() } else { format!(", {numjobs} jobs") };
    format!("{work} of {size}, {engine}, {iodepth} in flight{jobs}")
}

/// The groups and the labels of a picture.
struct Layout<'a> {
    /// Each with its name. Rows of one label in one group, as where two engines became one, stand side by side.
    groups: Vec<(String, Vec<&'a Row>)>,
    labels: Vec<&'a str>,
    /// Instructions are shown, and not the speed.
    counted: bool,
    /// Bars of the largest group, and the room between two groups.
    step: f64,
}

impl<'a> Layout<'a> {
    fn of(rows: &'a [Row]) -> Self {
        let (mut labels, mut groups) = (Vec::new(), Vec::<(String, Vec<&Row>)>::new());
        for row in rows {
            let name = combination(row);
            match groups.iter_mut().find(|(known, _)| *known == name) {
                Some((_, rows)) => rows.push(row),
                None => groups.push((name, vec![row])),
            }
            if !labels.contains(&row.label.as_str()) {
                labels.push(row.label.as_str());
            }
        }
        let most = groups.iter().map(|(_, rows)| rows.len()).max().unwrap_or(0);
        let counted = rows.iter().any(|row| row.instructions.is_some());
        Self { groups, labels, counted, step: most as f64 + 1.0 }
    }

    fn value(&self, row: &Row) -> f64 {
        if self.counted { row.instructions.unwrap_or_default() } else { row.ratio }
    }

    /// The lowest and the highest of the rounds, where more is known than the value.
    fn spread(&self, row: &Row) -> Option<(f64, f64)> {
        let spread = (row.ratio_min, row.ratio_max);
        (!self.counted && spread.0 < spread.1).then_some(spread)
    }

    fn highest(&self, row: &Row) -> f64 {
        self.spread(row).map_or(0.0, |spread| spread.1).max(self.value(row))
    }

    /// The lines of the legend.
    fn legend(&self) -> Vec<String> {
        let mut lines: Vec<_> = self.labels.iter().map(|label| in_words(label)).collect();
        if self.groups.iter().flat_map(|(_, rows)| rows).any(|row| self.spread(row).is_some()) {
            lines.push("line: lowest to highest run".to_owned());
        }
        lines
    }
}

fn centred(vertical: VPos) -> TextStyle<'static> {
    let style = TextStyle::from(("sans-serif", 12).into_font());
    style.pos(Pos::new(HPos::Center, vertical))
}

fn draw(rows: &[Row], path: &Path) -> std::result::Result<(), Box<dyn std::error::Error>> {
    let layout = Layout::of(rows);
    let Layout { groups, step, counted, .. } = &layout;
    let top = rows.iter().map(|row| layout.highest(row)).fold(1.0, f64::max) * 1.15;
    let lines = layout.legend();
    let widest = |texts: &mut dyn Iterator<Item = &String>| {
        texts.map(|text| CHARACTER * text.chars().count() as u32).max().unwrap_or(0)
    };
    let names = widest(&mut groups.iter().map(|(name, _)| name)) + 2 * MARGIN;
    let group_width = names.max(BAR * *step as u32).max(LEAST_GROUP);
    let legend_width = widest(&mut lines.iter()) + 4 * MARGIN;
    let plot_width = AXIS + MARGIN + group_width * groups.len() as u32;
    let height = LEAST_HEIGHT.max(2 * MARGIN + LINE * lines.len() as u32);
    let root = SVGBackend::new(path, (plot_width + legend_width, height)).into_drawing_area();
    root.fill(&WHITE)?;
    let (plot, legend) = root.split_horizontally(plot_width);
    let mut chart = ChartBuilder::on(&plot)
        .margin(MARGIN)
        .caption(
            if *counted { "instructions a request" } else { "speed: longer is faster" },
            ("sans-serif", 18),
        )
        .x_label_area_size(LINE + MARGIN)
        .y_label_area_size(AXIS - MARGIN)
        .build_cartesian_2d(0.0..step * groups.len() as f64, 0.0..top)?;
    // The axis has no names of its own: it would choose places for them.
    let axis = if *counted { "instructions" } else { "requests a second; the first target is 1" };
    let mut mesh = chart.configure_mesh();
    mesh.disable_x_mesh().x_labels(0).y_desc(axis).label_style(("sans-serif", 12)).draw()?;
    for (group, (_, rows)) in groups.iter().enumerate() {
        // In the middle of the group's room, which the largest group fills.
        let first = group as f64 * step + (step - rows.len() as f64) / 2.0;
        for (at, row) in rows.iter().enumerate() {
            let (left, value) = (first + at as f64, layout.value(row));
            let label = layout.labels.iter().position(|label| *label == row.label).unwrap_or(0);
            let bar =
                Rectangle::new([(left + 0.1, 0.0), (left + 0.9, value)], colour(label).filled());
            chart.draw_series([bar])?;
            if let Some((low, high)) = layout.spread(row) {
                let line = vec![(left + 0.5, low), (left + 0.5, high)];
                chart.draw_series([PathElement::new(line, BLACK.stroke_width(2))])?;
            }
            let above = (left + 0.5, layout.highest(row) + top * 0.01);
            chart.draw_series([Text::new(format!("{value:.2}"), above, centred(VPos::Bottom))])?;
        }
    }
    for (at, line) in lines.iter().enumerate() {
        let y = (2 * MARGIN + LINE * at as u32) as i32;
        if at < layout.labels.len() {
            let square = [(MARGIN as i32, y), (2 * MARGIN as i32, y + 12)];
            legend.draw(&Rectangle::new(square, colour(at).filled()))?;
        }
        legend.draw(&Text::new(line.as_str(), (3 * MARGIN as i32, y), ("sans-serif", 12)))?;
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

    fn hex(at: usize) -> String {
        let RGBColor(red, green, blue) = colour(at);
        format!("#{red:02X}{green:02X}{blue:02X}")
    }

    /// Each row has its own bar and its own line for the spread, also where two rows have one name, as many colours as labels, and words.
    #[test]
    fn no_bar_hides_another_and_no_colour_comes_twice() {
        let distinct: std::collections::BTreeSet<_> = (0..24).map(hex).collect();
        assert_eq!(distinct.len(), 24);
        let names = [
            "raw",
            "vol simple=1",
            "vol simple=0",
            "host",
            "kernel",
            "null",
            "kernel",
            "vol simple=1",
        ];
        let row = |label: &&str| Row {
            label: (*label).to_owned(),
            rw: "randread",
            engine: "psync".to_owned(),
            iodepth: 1,
            numjobs: 1,
            bs: 4096,
            ratio: 0.5,
            ratio_min: 0.25,
            ratio_max: 0.75,
            ..Row::default()
        };
        let rows: Vec<Row> = names.iter().map(row).collect();
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("plot.svg");
        svg(&rows, &path).unwrap();
        let picture = std::fs::read_to_string(&path).unwrap();
        let colours: Vec<_> = (0..6).map(hex).collect();
        let mut bars = elements(&picture, "rect");
        bars.retain(|bar| colours.contains(&bar.fill) && bar.width != f64::from(MARGIN));
        bars.sort_by(|a, b| a.x.total_cmp(&b.x));
        assert_eq!(bars.len(), names.len());
        assert!(bars.windows(2).all(|two| two[0].x + two[0].width <= two[1].x), "{bars:?}");
        assert_ne!(bars[0].fill, bars[4].fill);
        for words in ["the raw device", "ironmap, unmounted volume, general path", "the kernel"] {
            assert!(picture.contains(words), "{words}");
        }
        assert!(picture.contains("requests a second; the first target is 1"));
        assert!(picture.contains("line: lowest to highest run"));
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
            let colours: Vec<_> = (0..labels.len()).map(hex).collect();
            let mut bars = elements(&picture, "rect");
            bars.retain(|bar| colours.contains(&bar.fill) && bar.width != f64::from(MARGIN));
            bars.sort_by(|a, b| a.x.total_cmp(&b.x));
            assert_eq!(bars.len(), rows.len());
            let texts = elements(&picture, "text");
            let mut end = 0.0;
            for (group, bars) in bars.chunks(labels.len()).enumerate() {
                let name =
                    format!("random reads of 4 KiB, io_uring, {} in flight, 8 jobs", 1 << group);
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
            for label in labels.map(in_words) {
                let found: Vec<_> = texts.iter().filter(|text| text.text == label).collect();
                assert!(found.len() == 1 && found[0].x > right, "{label}: {found:?}");
            }
        }
    }
}
