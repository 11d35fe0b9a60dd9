//! The results as a picture: bars of the ratio to the first target, a group for each combination.

use std::path::Path;

use ironmap::{Error, Result};
use plotters::prelude::*;

use super::report::Row;

const COLOURS: [RGBColor; 5] = [
    RGBColor(90, 90, 90),
    RGBColor(221, 132, 82),
    RGBColor(76, 114, 176),
    RGBColor(85, 168, 104),
    RGBColor(196, 78, 82),
];

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
    let width = 260 + 240 * groups.len() as u32;
    let root = SVGBackend::new(path, (width, 420)).into_drawing_area();
    root.fill(&WHITE)?;
    let step = labels.len() as f64 + 1.0;
    let mut chart = ChartBuilder::on(&root)
        .margin(12)
        .caption(
            if counted { "instructions a request" } else { "speed relative to the first target" },
            ("sans-serif", 18),
        )
        .x_label_area_size(36)
        .y_label_area_size(56)
        .build_cartesian_2d(0.0..step * groups.len() as f64, 0.0..top)?;
    let name = |x: &f64| {
        let index = (*x / step).floor();
        let centre = index * step + step / 2.0;
        let group = groups.get(index as usize).filter(|_| (x - centre).abs() < 0.01);
        group.map_or(String::new(), |(name, _)| name.clone())
    };
    chart
        .configure_mesh()
        .disable_x_mesh()
        .x_labels(groups.len() * 2 + 1)
        .x_label_formatter(&name)
        .label_style(("sans-serif", 12))
        .draw()?;
    for (at, label) in labels.iter().enumerate() {
        let colour = COLOURS[at % COLOURS.len()];
        let bars = groups.iter().enumerate().flat_map(|(group, (_, rows))| {
            let left = group as f64 * step + 0.5 + at as f64;
            let own = rows.iter().filter(|row| row.label == *label);
            own.map(move |row| {
                Rectangle::new([(left + 0.1, 0.0), (left + 0.9, value(row))], colour.filled())
            })
        });
        chart
            .draw_series(bars)?
            .label(label)
            .legend(move |(x, y)| Rectangle::new([(x, y - 5), (x + 12, y + 5)], colour.filled()));
        let figures = groups.iter().enumerate().flat_map(|(group, (_, rows))| {
            let middle = group as f64 * step + 0.75 + at as f64;
            let own = rows.iter().filter(|row| row.label == *label);
            own.map(move |row| {
                Text::new(
                    format!("{:.2}", value(row)),
                    (middle, value(row) + top * 0.04),
                    ("sans-serif", 12),
                )
            })
        });
        chart.draw_series(figures)?;
    }
    chart
        .configure_series_labels()
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK.mix(0.3))
        .draw()?;
    root.present()?;
    Ok(())
}
