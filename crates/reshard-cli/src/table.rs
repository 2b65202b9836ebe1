//! Tables and facts for people.

use crate::units;
use anstyle::Style;
use std::{borrow::Cow, fmt::Display, io};
use unicode_width::UnicodeWidthStr;

pub(crate) const BOLD: Style = Style::new().bold();
pub(crate) const DIM: Style = Style::new().dimmed();
pub(crate) const GOOD: Style = Style::new()
    .bold()
    .fg_color(Some(anstyle::Color::Ansi(anstyle::AnsiColor::Green)));
pub(crate) const BAD: Style = Style::new()
    .bold()
    .fg_color(Some(anstyle::Color::Ansi(anstyle::AnsiColor::Red)));

/// What stands between two columns.
const BETWEEN: &str = "  ";
/// No column is padded to more. A longer cell moves the rest of its row to the right.
const WIDEST: usize = 200;

/// Text that may come from a file: characters that could move a terminal's cursor, turn its direction or stay unseen are
/// written as escapes.
pub(crate) fn shown(text: &str) -> Cow<'_, str> {
    if !text.contains(steers) {
        return text.into();
    }
    let escaped = |c: char| {
        if steers(c) {
            c.escape_default().to_string()
        } else {
            c.to_string()
        }
    };
    text.chars().map(escaped).collect()
}

/// The same of text that quotes lines: its own lines stay, and all but the first are indented, so that none looks like one of the program.
pub(crate) fn shown_lines(text: &str) -> String {
    let lines: Vec<Cow<'_, str>> = text.lines().map(shown).collect();
    lines.join("\n  ")
}

/// What moves a cursor, turns the direction of text, or is not seen.
pub(crate) fn steers(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}'..='\u{1160}' | '\u{17b4}'..='\u{17b5}'
            | '\u{180b}'..='\u{180f}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{3164}' | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{ffa0}'
            | '\u{fff0}'..='\u{fffb}' | '\u{1d173}'..='\u{1d17a}'
            // Tags, and what else lies in their plane.
            | '\u{e0000}'..='\u{e0fff}')
}

/// Text in a style; who prints it to what is no terminal strips that.
pub(crate) fn styled(style: Style, text: impl Display) -> String {
    format!("{style}{text}{style:#}")
}

/// Writes rows under a heading. Columns whose title starts with `>` stand to the right. Rows are made twice, first for the widths of columns,
/// so that a table of many rows takes no memory.
pub(crate) fn rows<const N: usize, R: IntoIterator<Item = [String; N]>>(
    out: &mut dyn io::Write,
    titles: [&str; N],
    rows: impl Fn() -> R,
) -> io::Result<()> {
    let names = titles.map(|t| t.trim_start_matches('>'));
    let mut widths = names.map(str::width);
    for row in rows() {
        for (width, cell) in widths.iter_mut().zip(&row) {
            *width = shown(cell).width().min(WIDEST).max(*width);
        }
    }
    let line = |cells: [&str; N]| {
        let mut line = String::new();
        for ((cell, title), width) in cells.into_iter().zip(titles).zip(widths) {
            let cell = shown(cell);
            let room = " ".repeat(width.saturating_sub(cell.width()));
            let (before, after) = match title.starts_with('>') {
                true => (&*room, ""),
                false => ("", &*room),
            };
            line.extend([before, &cell, after, BETWEEN]);
        }
        line.truncate(line.trim_end().len());
        line
    };
    writeln!(out, "{BOLD}{}{BOLD:#}", line(names))?;
    for row in rows() {
        writeln!(out, "{}", line(row.each_ref().map(String::as_str)))?;
    }
    Ok(())
}

/// The first of many things, and how many others there are, if there are some.
pub(crate) fn few<T>(all: &[T], most: usize) -> (&[T], Option<String>) {
    let (first, others) = all.split_at(all.len().min(most));
    let more = units::count(others.len() as u64);
    (first, (!others.is_empty()).then_some(more))
}

/// The first characters of a text that a file may have made very long.
pub(crate) fn beginning(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        None => text.into(),
        Some((end, _)) => format!("{}…", &text[..end]),
    }
}

/// Writes `name  value`, values in one column.
pub(crate) fn fact(out: &mut dyn io::Write, name: &str, value: impl Display) -> io::Result<()> {
    styled_fact(out, name, Style::new(), value)
}

/// The same, in a style.
pub(crate) fn styled_fact(
    out: &mut dyn io::Write,
    name: &str,
    style: Style,
    value: impl Display,
) -> io::Result<()> {
    writeln!(
        out,
        "  {DIM}{name:<12}{DIM:#}{style}{}{style:#}",
        shown(&value.to_string())
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_of_a_file_cannot_steer_the_terminal() {
        assert_eq!(shown("a\u{1b}[2Jb\n"), "a\\u{1b}[2Jb\\n");
        assert_eq!(shown("a\u{202e}gpj.exe"), "a\\u{202e}gpj.exe");
        assert_eq!(
            shown("a\u{9b}b\u{e0041}\u{e0100}"),
            "a\\u{9b}b\\u{e0041}\\u{e0100}"
        );
        assert_eq!(shown("größe.データ"), "größe.データ");
    }

    #[test]
    fn lines_that_are_quoted_stay_lines_and_cannot_steer_either() {
        assert_eq!(
            shown_lines("at line 1\n\u{1b}[2Ja =\nhint: rm"),
            "at line 1\n  \\u{1b}[2Ja =\n  hint: rm"
        );
    }

    #[test]
    fn columns_line_up_under_a_bold_heading() {
        let mut out = Vec::new();
        let cells = [["x", "1"], ["größe", "1000"], ["データ", "1"]];
        rows(&mut out, ["A", ">B"], || {
            cells.map(|row| row.map(String::from))
        })
        .unwrap();
        let text = String::from_utf8(out).unwrap();
        let plain = text.replace("\u{1b}[1m", "").replace("\u{1b}[0m", "");
        assert_eq!(
            plain,
            "A          B\nx          1\ngröße   1000\nデータ     1\n"
        );
        assert!(text.starts_with("\u{1b}[1mA"));
    }

    #[test]
    fn a_very_long_cell_does_not_make_every_row_as_long() {
        let mut out = Vec::new();
        let long = "k".repeat(3_000);
        rows(&mut out, ["A", "B"], || {
            [["x", "1"], [&*long, "2"]].map(|row| row.map(String::from))
        })
        .unwrap();
        let text = String::from_utf8(out).unwrap();
        let lines: Vec<usize> = text.lines().skip(1).map(str::len).collect();
        assert_eq!(lines, [WIDEST + 3, long.len() + 3]);
    }
}
