//! Draws the results. Each combination of options has a group of bars. A bar shows the ratio to the first target.

use std::path::Path;

use ironmap::{Error, Result};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::report::Row;

/// The colours of the first series. `colour` computes the colours of further series.
const COLOURS: [RGBColor; 5] = [
    RGBColor(90, 90, 90),
    RGBColor(221, 132, 82),
    RGBColor(76, 114, 176),
    RGBColor(85, 168, 104),
    RGBColor(196, 78, 82),
];

/// The estimated width of a character. The real width depends on the fonts of the viewer. All sizes in this file are in pixels.
const CHARACTER: u32 = 7;
const MARGIN: u32 = 12;
const LINE: u32 = 20;
/// The width of the figures on the vertical axis.
const AXIS: u32 = 68;
const BAR: u32 = 44;
const LEAST_GROUP: u32 = 260;
const LEAST_HEIGHT: u32 = 420;

/// The rows as SVG.
pub(super) fn svg(rows: &[Row]) -> Result<String> {
    let mut picture = String::new();
    let drawn = draw(rows, &mut picture);
    drawn.map_err(|error| Error::invalid(format!("cannot draw the plot: {error}")))?;
    Ok(picture)
}

/// Returns an error message if the extension of `path` belongs to a format other than SVG.
pub(super) fn other_name(path: &Path) -> Option<String> {
    const OTHERS: [&str; 13] = [
        "png", "jpg", "jpeg", "gif", "webp", "avif", "bmp", "tif", "tiff", "pdf", "ps", "eps",
        "svgz",
    ];
    let extension = path.extension()?.to_str()?.to_ascii_lowercase();
    let instead = path.with_extension("svg");
    OTHERS.contains(&&*extension).then(|| {
        let (path, instead) = (path.display(), instead.display());
        format!("{path}: the plot is written as SVG, so the name must end in .svg: write {instead}")
    })
}

/// The colour of a series. It is unique within a picture.
fn colour(at: usize) -> RGBColor {
    COLOURS.get(at).copied().unwrap_or_else(|| {
        // Each hue differs from the previous hue by the golden angle. No hue is repeated. The lightness alternates. Therefore consecutive
        // colours differ clearly.
        let hue = (at as f64 * 0.381_966).fract();
        let (red, green, blue) =
            HSLColor(hue, 0.5, if at.is_multiple_of(2) { 0.35 } else { 0.65 }).rgb();
        RGBColor(red, green, blue)
    })
}

/// A label in words, for readers who do not know the bench's names.
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

/// A label. Equal labels in a group get different numbers. Two labels are equal if two requested engines fall back to the same engine.
type Series<'a> = (&'a str, usize);

/// The groups and the series of a picture.
struct Layout<'a> {
    /// The groups. A group has a name and rows. The number before a row is the index of its series.
    groups: Vec<(String, Vec<(usize, &'a Row)>)>,
    series: Vec<Series<'a>>,
    /// Whether the values are instructions instead of speeds.
    counted: bool,
    /// The distance between the starts of two groups, in widths of a bar.
    step: f64,
}

impl<'a> Layout<'a> {
    fn of(rows: &'a [Row]) -> Self {
        let (mut all, mut groups) =
            (Vec::<Series<'_>>::new(), Vec::<(String, Vec<(usize, &Row)>)>::new());
        for row in rows {
            let name = combination(row);
            let at = groups.iter().position(|(known, _)| *known == name).unwrap_or_else(|| {
                groups.push((name, Vec::new()));
                groups.len() - 1
            });
            let rows = &mut groups[at].1;
            let earlier = rows.iter().filter(|(_, other)| other.label == row.label).count();
            let series = (row.label.as_str(), earlier);
            let number = all.iter().position(|known| *known == series).unwrap_or_else(|| {
                all.push(series);
                all.len() - 1
            });
            rows.push((number, row));
        }
        let most = groups.iter().map(|(_, rows)| rows.len()).max().unwrap_or(0);
        let counted = rows.iter().any(|row| row.instructions.is_some());
        Self { groups, series: all, counted, step: most as f64 + 1.0 }
    }

    fn value(&self, row: &Row) -> f64 {
        if self.counted { row.instructions.unwrap_or_default() } else { row.ratio }
    }

    /// The lowest and the highest ratio of all rounds. `None` if they are equal.
    fn spread(&self, row: &Row) -> Option<(f64, f64)> {
        let spread = (row.ratio_min, row.ratio_max);
        (!self.counted && spread.0 < spread.1).then_some(spread)
    }

    fn highest(&self, row: &Row) -> f64 {
        self.spread(row).map_or(0.0, |spread| spread.1).max(self.value(row))
    }

    /// The lines of the legend.
    fn legend(&self) -> Vec<String> {
        let line = |(label, earlier): &Series<'_>| match earlier {
            0 => in_words(label),
            _ => format!("{} ({})", in_words(label), earlier + 1),
        };
        let mut lines: Vec<_> = self.series.iter().map(line).collect();
        let mut rows = self.groups.iter().flat_map(|(_, rows)| rows);
        if rows.any(|(_, row)| self.spread(row).is_some()) {
            lines.push("line: lowest to highest run".to_owned());
        }
        lines
    }
}

fn centred(vertical: VPos) -> TextStyle<'static> {
    let style = TextStyle::from(("sans-serif", 12).into_font());
    style.pos(Pos::new(HPos::Center, vertical))
}

fn draw(rows: &[Row], picture: &mut String) -> std::result::Result<(), Box<dyn std::error::Error>> {
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
    let size = (plot_width + legend_width, height);
    let root = SVGBackend::with_string(picture, size).into_drawing_area();
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
    // The code below draws the labels of the horizontal axis. The library would place them at arbitrary positions.
    let axis =
        if *counted { "instructions" } else { "requests a second, relative to the first target" };
    let mut mesh = chart.configure_mesh();
    mesh.disable_x_mesh().x_labels(0).y_desc(axis).label_style(("sans-serif", 12)).draw()?;
    for (group, (_, rows)) in groups.iter().enumerate() {
        // Each group has the same space, and its bars are in the centre. A group with the maximum number of bars fills the space.
        let first = group as f64 * step + (step - rows.len() as f64) / 2.0;
        for (at, (series, row)) in rows.iter().enumerate() {
            let (left, value) = (first + at as f64, layout.value(row));
            let corners = [(left + 0.1, 0.0), (left + 0.9, value)];
            let bar = Rectangle::new(corners, colour(*series).filled());
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
        if at < layout.series.len() {
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

    /// An element of the picture: a rectangle (a bar, or the colour of a label), or a text with its anchor.
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

    /// Each row has a separate bar, a separate line for the spread and a unique colour. Two rows may have the same name.
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
        let picture = svg(&rows).unwrap();
        let colours: Vec<_> = (0..names.len()).map(hex).collect();
        let mut bars = elements(&picture, "rect");
        bars.retain(|bar| colours.contains(&bar.fill) && bar.width != f64::from(MARGIN));
        bars.sort_by(|a, b| a.x.total_cmp(&b.x));
        assert_eq!(bars.len(), names.len());
        assert!(bars.windows(2).all(|two| two[0].x + two[0].width <= two[1].x), "{bars:?}");
        let distinct: std::collections::BTreeSet<_> = bars.iter().map(|bar| &bar.fill).collect();
        assert_eq!(distinct.len(), names.len());
        for words in [
            "the raw device",
            "the kernel (2)",
            "ironmap, unmounted volume, general path",
            "the kernel",
        ] {
            assert!(picture.contains(words), "{words}");
        }
        assert!(picture.contains("requests a second, relative to the first target"));
        assert!(picture.contains("line: lowest to highest run"));
    }

    /// The name of an SVG file must not have the extension of another format.
    #[test]
    fn a_picture_has_a_name_of_its_format() {
        for (name, instead) in [("a.png", Some("a.svg")), ("b/c.PDF", Some("b/c.svg"))]
            .into_iter()
            .chain(["a.svg", "a.SVG", "a", "/dev/stdout", "a.2026"].map(|name| (name, None)))
        {
            let said = other_name(Path::new(name));
            assert_eq!(said.is_some(), instead.is_some(), "{name}: {said:?}");
            assert!(instead.is_none_or(|it| said.unwrap().ends_with(&format!("write {it}"))));
        }
    }

    /// The name of a group is below its bars. Names do not overlap. The value of a bar is above the bar. The legend is beside the bars.
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
            let picture = svg(&rows).unwrap();
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
                assert!(found.x - half >= end, "{name} overlaps the label to its left");
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
