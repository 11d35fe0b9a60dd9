//! Makes a text table from a file of docs/bench. The file contains the output of `ironmap bench --json`, or columns and rows.

use std::fmt::Write as _;

use serde_json::Value;

use crate::Result;

/// The columns that a table of results can have. They have the same names as in the output of `ironmap bench`. Columns for counters follow,
/// with the names of the counters.
const FIGURES: [&str; 19] = [
    "target",
    "integrity",
    "rw",
    "size",
    "engine",
    "depth",
    "batch",
    "jobs",
    "IOPS",
    "MiB/s",
    "ratio",
    "spread",
    "CPU ns/IO",
    "CPU ms/GiB",
    "p50 ns",
    "p99 ns",
    "instructions/IO",
    "above first",
    "note",
];

/// The columns that identify a work, that is, a set of rows that are compared with each other. The column `engine` is not in this list,
/// because the targets of one work may use different engines.
const WORK: [&str; 5] = ["rw", "size", "depth", "batch", "jobs"];

/// The column with the ratio of the second raw device in a set of compared rows. The name of this device differs between the sets.
const TWIN: &str = "raw, mounted twin";

#[derive(Debug, PartialEq)]
pub(crate) struct Table {
    title: String,
    columns: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// The table of a file with results of `ironmap bench`, or with columns and rows.
    pub(crate) fn of(file: &Value) -> Result<Self> {
        if !file["machine"].is_object() {
            return Err("the file has no machine".into());
        }
        let (columns, rows) = match file.get("results") {
            Some(_) => figures(list(file, "results")?),
            None => cells(file)?,
        };
        if rows.is_empty() {
            return Err("the file has no rows".into());
        }
        Ok(Self { title: text(file, "title")?, columns, rows })
    }

    /// Keeps only the rows and columns that a file selects for the page: `"show": {"columns": [...], "rows": {"COLUMN": [cells]}}`.
    pub(crate) fn shown(mut self, show: &Value) -> Result<Self> {
        let keys = show.as_object().into_iter().flatten().map(|(key, _)| key.as_str());
        if let Some(key) = keys.clone().find(|key| !matches!(*key, "columns" | "rows")) {
            return Err(format!("show has no {key:?}").into());
        }
        if show.get("rows").is_some_and(|rows| !rows.is_object()) {
            return Err("show.rows must be an object with a list of cells for each column".into());
        }
        for (column, _) in show["rows"].as_object().into_iter().flatten() {
            let wanted = texts(&show["rows"], column)?;
            let at = self.column(column)?;
            let unmet = wanted.iter().find(|cell| !self.rows.iter().any(|row| row[at] == **cell));
            if let Some(cell) = unmet {
                return Err(format!("no row has {cell:?} as {column:?}").into());
            }
            self.rows.retain(|row| wanted.contains(&row[at]));
        }
        if self.rows.is_empty() {
            return Err("no row is shown".into());
        }
        if show.get("columns").is_none() {
            return Ok(self);
        }
        let columns = texts(show, "columns")?;
        let places = columns.iter().map(|name| self.column(name)).collect::<Result<Vec<_>>>()?;
        let row = |row: &Vec<String>| places.iter().map(|at| row[*at].clone()).collect();
        Ok(Self { rows: self.rows.iter().map(row).collect(), columns, ..self })
    }

    /// A table with the ratios from several tables. It has a row for each work (set of compared rows) of each table, and a column for each
    /// target.
    pub(crate) fn ratios(title: String, tables: &[Self], targets: &[String]) -> Result<Self> {
        let mut rows = Vec::new();
        for table in tables {
            table.add_ratios(targets, &mut rows)?;
        }
        for (at, target) in targets.iter().enumerate() {
            if rows.iter().all(|row: &Vec<String>| row[at + 2].is_empty()) {
                return Err(format!("no file has a target {target:?}").into());
            }
        }
        let columns = ["work".to_owned(), "depth".to_owned()].into_iter().chain(targets.to_vec());
        Ok(Self { title, columns: columns.collect(), rows })
    }

    fn add_ratios(&self, targets: &[String], rows: &mut Vec<Vec<String>>) -> Result {
        let depth = self.column("depth")?;
        let works = self.works()?;
        let firsts: Vec<_> = works.iter().filter_map(|work| work.first()).collect();
        for (work, first) in works.iter().zip(&firsts) {
            let mut cells = vec![self.name_of(first, &firsts)?, first[depth].clone()];
            for wanted in targets {
                cells.push(self.ratio(work, wanted)?);
            }
            rows.push(cells);
        }
        Ok(())
    }

    /// Splits the rows into works (sets of rows that are compared with each other). A work ends before a row with other values in the
    /// identifying columns, and before a row that repeats the work's first target.
    fn works(&self) -> Result<Vec<&[Vec<String>]>> {
        let target = self.column("target")?;
        let places: Vec<_> = WORK.iter().filter_map(|name| self.column(name).ok()).collect();
        let mut works = Vec::new();
        let mut rest = &self.rows[..];
        while let Some(first) = rest.first() {
            let other = |row: &Vec<String>| {
                row[target] == first[target] || places.iter().any(|at| row[*at] != first[*at])
            };
            let end = rest.iter().skip(1).position(other).map_or(rest.len(), |at| at + 1);
            let (work, after) = rest.split_at(end);
            works.push(work);
            rest = after;
        }
        Ok(works)
    }

    /// The name of a work (a set of compared rows): the title of the file, and the values of those columns that differ between the works of
    /// the file.
    fn name_of(&self, first: &[String], firsts: &[&Vec<String>]) -> Result<String> {
        let title = self.title.split_once(": ").map_or(self.title.as_str(), |(_, name)| name);
        let mut name = title.to_owned();
        let differs = |at: usize| firsts.iter().any(|other| other[at] != first[at]);
        let depth = self.column("depth")?;
        for part in ["rw", "size", "engine", "batch", "jobs"] {
            let Ok(at) = self.column(part) else { continue };
            // The depth limits the batch size. So the value of the column `batch` changes with the depth.
            if !differs(at) || (part == "batch" && differs(depth)) {
                continue;
            }
            name += &match part {
                "batch" => format!(", batch {}", first[at]),
                "jobs" => format!(", {} jobs", first[at]),
                _ => format!(", {}", first[at]),
            };
        }
        Ok(name)
    }

    /// The ratio and the spread of a target in one work (a set of rows that are compared). If the work does not contain the target, the
    /// text is empty.
    fn ratio(&self, rows: &[Vec<String>], wanted: &str) -> Result<String> {
        let (target, ratio) = (self.column("target")?, self.column("ratio")?);
        let found = rows.iter().find(|row| {
            let name = row[target].replace(" simple=1", "");
            name == wanted || (wanted == TWIN && name.starts_with("raw, "))
        });
        let Some(row) = found else { return Ok(String::new()) };
        let spread = self.column("spread").map_or("", |at| row[at].as_str());
        let spread = if spread.is_empty() { String::new() } else { format!(" ({spread})") };
        Ok(row[ratio].clone() + &spread)
    }

    /// The table as Markdown. Columns of numbers are aligned to the right.
    pub(crate) fn markdown(&self) -> String {
        let mut text = line(&self.columns);
        for at in 0..self.columns.len() {
            let number =
                |cell: &str| cell.starts_with(|c: char| c.is_ascii_digit() || "+-".contains(c));
            let right = self.rows.iter().all(|row| row[at].is_empty() || number(&row[at]));
            text += if right { "|--:" } else { "|---" };
        }
        text += "|\n";
        self.rows.iter().for_each(|row| text += &line(row));
        text
    }

    fn column(&self, name: &str) -> Result<usize> {
        let at = self.columns.iter().position(|column| column == name);
        at.ok_or_else(|| format!("no column {name:?}: it has {:?}", self.columns).into())
    }
}

fn line(cells: &[String]) -> String {
    let mut text = String::from("|");
    for cell in cells {
        let cell = cell.replace('\n', " ").replace('|', "\\|");
        let _ = write!(text, " {cell}{}|", if cell.is_empty() { "" } else { " " });
    }
    text + "\n"
}

/// Reads a text from a file.
pub(crate) fn text(file: &Value, name: &str) -> Result<String> {
    let text = file[name].as_str();
    text.map(str::to_owned).ok_or_else(|| format!("the file has no text {name:?}").into())
}

/// Reads a list of texts from a file.
pub(crate) fn texts(file: &Value, name: &str) -> Result<Vec<String>> {
    let texts = list(file, name)?.iter().map(|text| text.as_str().map(str::to_owned));
    texts.collect::<Option<_>>().ok_or_else(|| format!("{name:?} is not a list of texts").into())
}

fn list<'a>(file: &'a Value, name: &str) -> Result<&'a Vec<Value>> {
    file[name].as_array().ok_or_else(|| format!("the file has no list {name:?}").into())
}

/// Reads the columns and rows of a file. A column may set the number of decimals.
fn cells(file: &Value) -> Result<(Vec<String>, Vec<Vec<String>>)> {
    let columns = list(file, "columns")?;
    let names = columns.iter().map(|column| column["name"].as_str().map(str::to_owned));
    let names: Vec<_> = names.collect::<Option<_>>().ok_or("a column has no name")?;
    let mut rows = Vec::new();
    for row in list(file, "rows")? {
        let row = row.as_array().filter(|row| row.len() == names.len());
        let row = row.ok_or_else(|| format!("a row does not have {} cells", names.len()))?;
        let cell = |(value, column): (&Value, &Value)| match (value, column["decimals"].as_u64()) {
            (Value::Null, _) => String::new(),
            (Value::String(text), _) => text.clone(),
            (value, decimals) => number(value, decimals.unwrap_or(0)),
        };
        rows.push(row.iter().zip(columns).map(cell).collect());
    }
    Ok((names, rows))
}

fn number(value: &Value, decimals: u64) -> String {
    let decimals = decimals.min(9) as usize;
    value.as_f64().map_or(value.to_string(), |number| format!("{number:.decimals$}"))
}

/// Makes a table from the results of `ironmap bench`. Columns that are empty in all rows are omitted.
fn figures(results: &[Value]) -> (Vec<String>, Vec<Vec<String>>) {
    let mut names: Vec<String> = FIGURES.map(str::to_owned).to_vec();
    for counters in results.iter().filter_map(|row| row["counters"].as_object()) {
        names.extend(
            counters.keys().filter(|name| !names.contains(name)).cloned().collect::<Vec<_>>(),
        );
    }
    let row = |at| names.iter().map(|name| figure(results, at, name).unwrap_or_default()).collect();
    let rows: Vec<Vec<String>> = (0..results.len()).map(row).collect();
    let used: Vec<_> =
        (0..names.len()).filter(|at| rows.iter().any(|row| !row[*at].is_empty())).collect();
    let pick = |row: &[String]| used.iter().map(|at| row[*at].clone()).collect::<Vec<_>>();
    (pick(&names), rows.iter().map(|row| pick(row)).collect())
}

/// The cell of a row in a column.
fn figure(results: &[Value], at: usize, name: &str) -> Option<String> {
    let row = &results[at];
    let text = |name: &str| row[name].as_str().map(str::to_owned);
    let number = |name: &str, decimals| {
        let value = &row[name];
        value.is_number().then(|| number(value, decimals))
    };
    match name {
        "target" => Some(label(results, at)),
        "integrity" | "rw" | "engine" | "note" => text(name),
        "size" => row["bs"].as_u64().map(size),
        "depth" => number("iodepth", 0),
        "batch" => Some(
            row["batch"].as_u64()?.min(row["iodepth"].as_u64().unwrap_or(u64::MAX)).to_string(),
        ),
        "jobs" => number("numjobs", 0),
        "IOPS" => number("iops", 0),
        "MiB/s" => number("mib_s", 0),
        "ratio" => number("ratio", 3),
        "spread" => Some(format!("{}..{}", number("ratio_min", 3)?, number("ratio_max", 3)?)),
        "CPU ns/IO" => number("cpu_ns_per_io", 0),
        "CPU ms/GiB" => number("cpu_ms_per_gib", 0),
        "p50 ns" | "p99 ns" => row["lat_ns"][&name[..3]].as_u64().map(|ns| ns.to_string()),
        "instructions/IO" => number("instructions_per_io", 1),
        "above first" => above_first(results, at).map(|above| format!("{above:+.1}")),
        counter => row["counters"][counter].as_u64().map(|count| count.to_string()),
    }
}

/// The label of a target: its kind and its variant. If an earlier target in the same set of compared rows has the same kind, the label also
/// contains the name.
fn label(results: &[Value], at: usize) -> String {
    let target = |row: &Value| row["target"].as_str().unwrap_or_default().to_owned();
    let kind = |target: &str| target.split(':').next().unwrap_or_default().to_owned();
    let own = target(&results[at]);
    let mut label = kind(&own);
    let mut others = results[..at].iter().map(target).take_while(|other| *other != own);
    if others.any(|other| kind(&other) == label) {
        let name = own.rsplit(['/', ':']).next().unwrap_or_default();
        label = format!("{label}, {name}");
    }
    if let Some(simple) = results[at]["simple"].as_u64() {
        label = format!("{label} simple={simple}");
    }
    match results[at]["integrity"].as_str() {
        Some(integrity) => format!("{label} {integrity}"),
        None => label,
    }
}

/// How many more instructions the target needs than the first target of the same set of compared rows. The number is in the file, or it is
/// computed.
fn above_first(results: &[Value], at: usize) -> Option<f64> {
    let row = &results[at];
    let own = row["instructions_per_io"].as_f64()?;
    row["instructions_above_first"].as_f64().or_else(|| {
        let work = ["rw", "bs", "engine", "iodepth", "batch", "numjobs"];
        let first = results.iter().find(|other| work.iter().all(|name| other[name] == row[name]));
        Some(own - first?["instructions_per_io"].as_f64()?)
    })
}

fn size(bytes: u64) -> String {
    match bytes {
        bytes if bytes > 0 && bytes.is_multiple_of(1 << 20) => format!("{} MiB", bytes >> 20),
        bytes if bytes > 0 && bytes.is_multiple_of(1 << 10) => format!("{} KiB", bytes >> 10),
        bytes => format!("{bytes} B"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BENCH: &str = r#"{"title": "Reads: zram", "commands": ["./x bench"], "machine": {"cpus": 2}, "results": [
        {"target": "raw:/dev/zram0", "bs": 4096, "iodepth": 1, "batch": 32, "simple": null, "ratio": 1.0, "ratio_min": 1.0, "ratio_max": 1.0,
         "iops": 992658.4, "instructions_per_io": 32.0, "counters": {}},
        {"target": "vol:/dev/zram0:/f", "bs": 4096, "iodepth": 1, "batch": 32, "simple": 0, "ratio": 0.9, "counters": {}},
        {"target": "vol:/dev/zram0:/f", "bs": 4096, "iodepth": 1, "batch": 32, "simple": 1, "ratio": 1.0254, "ratio_min": 1.022, "ratio_max": 1.035,
         "instructions_per_io": 116.8, "counters": {"handles": 7}},
        {"target": "raw:/dev/zram1", "bs": 4096, "iodepth": 64, "batch": 32, "simple": null, "ratio": 1.0, "counters": {}}
    ]}"#;

    const PLAIN: &str = r#"{"title": "Growth", "commands": [], "machine": {},
        "columns": [{"name": "extents"}, {"name": "relative", "decimals": 3}], "rows": [["1k", 1], ["1M", 1.3125], ["2M", null]]}"#;

    fn parse(file: &str) -> Result<Table> {
        Table::of(&serde_json::from_str(file)?)
    }

    fn shown(file: &str, show: &str) -> Result<String> {
        Ok(parse(file)?.shown(&serde_json::from_str(show)?)?.markdown())
    }

    /// A file may be the output of `ironmap bench --json` with a title and commands.
    #[test]
    fn results_of_the_bench_have_the_columns_of_its_table() {
        let show = r#"{"columns": ["target", "batch", "IOPS", "ratio", "spread", "above first", "handles"]}"#;
        assert_eq!(
            shown(BENCH, show).unwrap(),
            "| target | batch | IOPS | ratio | spread | above first | handles |\n|---|--:|--:|--:|--:|--:|--:|\n\
             | raw | 1 | 992658 | 1.000 | 1.000..1.000 | +0.0 | |\n| vol simple=0 | 1 | | 0.900 | | | |\n\
             | vol simple=1 | 1 | | 1.025 | 1.022..1.035 | +84.8 | 7 |\n| raw, zram1 | 32 | | 1.000 | | | |\n"
        );
    }

    #[test]
    fn other_tables_keep_their_decimals() {
        let expected =
            "| relative | extents |\n|--:|--:|\n| 1.000 | 1k |\n| 1.312 | 1M |\n| | 2M |\n";
        let show = r#"{"columns": ["relative", "extents"]}"#;
        assert_eq!(shown(PLAIN, show).unwrap(), expected);
    }

    #[test]
    fn ratios_are_a_row_for_each_work() {
        let ratios = |file: &str, targets: &[&str]| {
            let targets: Vec<_> = targets.iter().map(|target| (*target).to_owned()).collect();
            Table::ratios("Reads".to_owned(), &[parse(file)?], &targets)
        };
        let expected = "| work | depth | vol | raw, mounted twin |\n|---|--:|--:|--:|\n\
                        | zram | 1 | 1.025 (1.022..1.035) | |\n| zram | 64 | | 1.000 |\n";
        assert_eq!(ratios(BENCH, &["vol", TWIN]).unwrap().markdown(), expected);
        assert!(ratios(BENCH, &["kernel"]).is_err());
        assert!(ratios(PLAIN, &["vol"]).is_err());
    }

    /// Rows of targets with different engines belong to the same work (set of compared rows). If a row has the first target again, the next
    /// work begins.
    #[test]
    fn works_are_told_apart_by_the_first_target() {
        let row = |target, engine, ratio| {
            format!(
                r#"{{"target": "{target}", "iodepth": 1, "engine": "{engine}", "ratio": {ratio}}}"#
            )
        };
        let rows = [
            row("raw", "io_uring", 1.0),
            row("vol", "psync", 0.5),
            row("raw", "psync", 1.0),
            row("vol", "psync", 0.25),
        ];
        let file = format!(
            r#"{{"title": "Reads: a", "machine": {{}}, "results": [{}]}}"#,
            rows.join(", ")
        );
        let ratios =
            Table::ratios("Reads".to_owned(), &[parse(&file).unwrap()], &["vol".to_owned()]);
        let expected = "| work | depth | vol |\n|---|--:|--:|\n| a, io_uring | 1 | 0.500 |\n| a, psync | 1 | 0.250 |\n";
        assert_eq!(ratios.unwrap().markdown(), expected);
    }

    #[test]
    fn rows_are_chosen_by_their_cells() {
        let expected = "| extents | relative |\n|--:|--:|\n| 1k | 1.000 |\n| 1M | 1.312 |\n";
        assert_eq!(shown(PLAIN, r#"{"rows": {"extents": ["1M", "1k"]}}"#).unwrap(), expected);
        for wrong in [
            r#"{"rows": {"extents": ["3M"]}}"#,
            r#"{"rows": {"extents": "1M"}}"#,
            r#"{"rows": {"extents": []}}"#,
            r#"{"rows": {"colour": ["1M"]}}"#,
            r#"{"rows": ["1M"]}"#,
            r#"{"column": ["extents"]}"#,
            r#"{"columns": ["colour"]}"#,
            r#"{"columns": [1]}"#,
        ] {
            assert!(shown(PLAIN, wrong).is_err(), "{wrong}");
        }
    }

    /// Bad input gives an error that names the fault. It never causes a panic.
    #[test]
    fn a_file_needs_all_of_its_parts() {
        for wrong in [
            "",
            "[]",
            "{}",
            r#"{"title": 1, "machine": {}, "results": [{}]}"#,
            r#"{"title": "a", "results": [{}]}"#,
            r#"{"title": "a", "machine": {}, "results": []}"#,
            r#"{"title": "a", "machine": {}, "columns": [{}], "rows": [[1]]}"#,
            r#"{"title": "a", "machine": {}, "columns": [{"name": "b"}], "rows": [[1, 2]]}"#,
            r#"{"title": "a", "machine": {}, "columns": 1, "rows": 1}"#,
        ] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
        let strange = r#"{"title": "a", "machine": {}, "results": [1, null, {"bs": -1, "lat_ns": 3}, {"target": 4}]}"#;
        assert!(parse(strange).is_ok());
    }
}
