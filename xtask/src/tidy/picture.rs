//! The picture of the benchmarks is drawn from their table, so that neither says what the other does not.

use std::fmt::Write as _;

use anyhow::{Context as _, Result};

use crate::shell::{root, say};

const TABLE: &str = "docs/benchmarks.md";

/// Colours of text, lines and bars.
struct Theme {
    file: &'static str,
    text: &'static str,
    faint: &'static str,
    bar: &'static str,
}

const THEMES: [Theme; 2] = [
    Theme {
        file: "docs/benchmarks-light.svg",
        text: "#1f2328",
        faint: "#8c959f",
        bar: "#2f6f4f",
    },
    Theme {
        file: "docs/benchmarks-dark.svg",
        text: "#e6edf3",
        faint: "#6e7681",
        bar: "#57ab7a",
    },
];

pub(super) fn check(bless: bool, complaints: &mut Vec<String>) -> Result<()> {
    let table = std::fs::read_to_string(root().join(TABLE))
        .with_context(|| format!("cannot read {TABLE}"))?;
    let bars = bars(&table);
    if bars.is_empty() {
        complaints.push(format!(
            "{TABLE}: no row has a peer and a ratio, so there is nothing to draw"
        ));
    }
    for theme in &THEMES {
        let (path, drawn) = (root().join(theme.file), drawn(&bars, theme));
        if std::fs::read_to_string(&path).is_ok_and(|old| old == drawn) {
            continue;
        }
        if bless {
            std::fs::write(&path, drawn).with_context(|| format!("cannot write {}", theme.file))?;
            say(format!("tidy: {} drawn", theme.file));
        } else {
            let name = theme.file;
            complaints.push(format!(
                "{name}: is not what {TABLE} says; run `cargo xtask tidy --bless`"
            ));
        }
    }
    Ok(())
}

/// How much faster something is than a peer.
#[derive(Debug, PartialEq)]
struct Bar {
    what: String,
    peer: String,
    ratio: f64,
}

/// Peers by the first words of their names in the table, as the picture calls them.
const PEERS: [(&str, &str); 4] = [
    ("DCP (", "PyTorch DCP"),
    ("torch ", "PyTorch"),
    ("TensorFlow, tf.function", "TensorFlow"),
    ("pickle.load", "Python's pickle"),
];

/// The rows beside a program of others, of the disk where there are those of the memory, too.
fn bars(table: &str) -> Vec<Bar> {
    let mut out = Vec::new();
    for row in table.lines().filter(|line| line.starts_with('|')) {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        let [_, what, who, _, _, _, _, ratio, ..] = &cells[..] else {
            continue;
        };
        let Some((_, peer)) = PEERS.iter().find(|(begins, _)| who.starts_with(begins)) else {
            continue;
        };
        let Some((ratio, _)) = ratio.split_once('x') else {
            continue;
        };
        let Ok(ratio) = ratio.parse() else { continue };
        if !what.ends_with(", tmpfs") {
            let what = what.trim_end_matches(", disk").to_owned();
            out.push(Bar {
                what,
                peer: (*peer).to_owned(),
                ratio,
            });
        }
    }
    out
}

const LEFT: f64 = 500.0;
const WIDTH: f64 = 360.0;
const ROW: f64 = 22.0;
const TICKS: [f64; 6] = [1.0, 2.0, 5.0, 10.0, 20.0, 50.0];

/// Where a ratio lies on the axis, which grows by factors: half as fast is as far from equal as twice.
fn x(ratio: f64) -> f64 {
    LEFT + WIDTH * (ratio.max(0.5) / 0.5).log10() / (100.0_f64).log10()
}

fn drawn(bars: &[Bar], theme: &Theme) -> String {
    let Theme {
        text,
        faint,
        bar: colour,
        ..
    } = theme;
    let bottom = 40.0 + ROW * bars.len() as f64;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"900\" height=\"{:.0}\" font-family=\"sans-serif\" font-size=\"13\">\n",
        bottom + 30.0
    );
    let mut put = |line: std::fmt::Arguments<'_>| out.write_fmt(format_args!("{line}\n"));
    let all = (|| {
        put(format_args!(
            "<title>How many times as fast as others reshard is; their best settings, on two cores</title>"
        ))?;
        put(format_args!(
            "<text x=\"{LEFT}\" y=\"20\" fill=\"{text}\" font-weight=\"bold\">times as fast as</text>"
        ))?;
        for tick in TICKS {
            let x = x(tick);
            let dash = if tick == 1.0 {
                ""
            } else {
                " stroke-dasharray=\"2 4\""
            };
            put(format_args!(
                "<path d=\"M{x:.1} 32V{bottom:.1}\" stroke=\"{faint}\"{dash}/>"
            ))?;
            let y = bottom + 18.0;
            put(format_args!(
                "<text x=\"{x:.1}\" y=\"{y:.1}\" fill=\"{faint}\" text-anchor=\"middle\">{tick}</text>"
            ))?;
        }
        for (i, Bar { what, peer, ratio }) in bars.iter().enumerate() {
            let (top, from, to) = (40.0 + ROW * i as f64, x(ratio.min(1.0)), x(ratio.max(1.0)));
            let (base, what) = (top + 13.0, escaped(what));
            put(format_args!(
                "<text x=\"{:.0}\" y=\"{base:.0}\" fill=\"{text}\" text-anchor=\"end\">{what}</text>",
                LEFT - 10.0
            ))?;
            let width = (to - from).max(1.5);
            put(format_args!(
                "<rect x=\"{from:.1}\" y=\"{:.0}\" width=\"{width:.1}\" height=\"14\" fill=\"{colour}\"/>",
                top + 2.0
            ))?;
            put(format_args!(
                "<text x=\"{:.1}\" y=\"{base:.0}\" fill=\"{text}\">{ratio} {}</text>",
                to + 6.0,
                escaped(peer)
            ))?;
        }
        put(format_args!("</svg>"))
    })();
    // Writing to a String can't fail.
    all.map(|()| out).unwrap_or_default()
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_are_rows_beside_others_of_the_disk() {
        let table = "\
| what | who | checks | runs | median | speed | their time / ours | CPU | memory |
| --- | --- | --- | --- | --- | --- | --- | --- | --- |
| save, disk | reshard | CRC | 15 | 1 s | 1 GB/s |  | 1 s | 8 MiB |
| save, disk | DCP (cached) | CRC | 15 | 2 s | 1 GB/s | 2.10x (target 2.00x, reached) | 2 s | 7 MiB |
| save, disk | DCP, CRC off (cached) | no | 15 | 2 s | 1 GB/s | 1.20x | 2 s | 7 MiB |
| save, disk | pwrite | | 15 | 1 s | 1 GB/s | 0.90x | 1 s | |
| save, tmpfs | DCP (cached) | CRC | 15 | 3 s | 1 GB/s | 3.00x | 2 s | 7 MiB |
| a < b | torch embedding | | 15 | 3 s | 1 GB/s | 0.93x | 2 s | 7 MiB |
";
        let found = bars(table);
        let told: Vec<_> = found
            .iter()
            .map(|b| (&*b.what, &*b.peer, b.ratio))
            .collect();
        assert_eq!(
            told,
            [("save", "PyTorch DCP", 2.1), ("a < b", "PyTorch", 0.93)]
        );
        let svg = drawn(&found, &THEMES[0]);
        assert!(
            svg.contains("a &lt; b") && svg.contains("0.93 PyTorch") && svg.ends_with("</svg>\n")
        );
        assert!(x(1.0) > x(0.93) && x(50.0) <= LEFT + WIDTH);
    }
}
