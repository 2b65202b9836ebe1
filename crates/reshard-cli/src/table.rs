//! Tables and facts for people.

use anstyle::Style;
use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use std::{borrow::Cow, fmt::Display, io};

pub(crate) const BOLD: Style = Style::new().bold();
pub(crate) const DIM: Style = Style::new().dimmed();
pub(crate) const GOOD: Style = Style::new()
    .bold()
    .fg_color(Some(anstyle::Color::Ansi(anstyle::AnsiColor::Green)));
pub(crate) const BAD: Style = Style::new()
    .bold()
    .fg_color(Some(anstyle::Color::Ansi(anstyle::AnsiColor::Red)));

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

/// Writes rows under a heading. Columns whose title starts with `>` stand to the right.
pub(crate) fn rows<const N: usize>(
    out: &mut dyn io::Write,
    titles: [&str; N],
    rows: impl IntoIterator<Item = [String; N]>,
) -> io::Result<()> {
    let mut table = Table::new();
    table
        .load_style(presets::NOTHING)
        .set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(titles.map(|t| t.trim_start_matches('>')));
    for row in rows {
        table.add_row(row.map(|cell| shown(&cell).into_owned()));
    }
    for (column, title) in table.column_iter_mut().zip(titles) {
        column.set_padding((0, 2));
        if title.starts_with('>') {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    for (i, line) in table.lines().enumerate() {
        let line = line.trim_end();
        match i {
            0 => writeln!(out, "{BOLD}{line}{BOLD:#}")?,
            _ => writeln!(out, "{line}")?,
        }
    }
    Ok(())
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
    fn columns_line_up_under_a_bold_heading() {
        let mut out = Vec::new();
        rows(
            &mut out,
            ["A", ">B"],
            [["x".into(), "1".into()], ["long".into(), "1000".into()]],
        )
        .unwrap();
        let text = String::from_utf8(out).unwrap();
        let plain = text.replace("\u{1b}[1m", "").replace("\u{1b}[0m", "");
        assert_eq!(plain, "A        B\nx        1\nlong  1000\n");
        assert!(text.starts_with("\u{1b}[1mA"));
    }
}
