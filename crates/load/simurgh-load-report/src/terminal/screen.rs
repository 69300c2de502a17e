//! Draws a block of lines at the end of a terminal, over the previous one.

use std::fmt::Write as _;
use std::io::{self, Write};

use ratatui::buffer::{Buffer, Cell};
use ratatui::style::{Color, Modifier};

use super::tty;

#[derive(Debug)]
pub(super) struct Screen<W> {
    out: W,
    colours: bool,
    /// Size of the block on the screen; rows 0: there is none.
    columns: u16,
    rows: u16,
}

impl<W: Write> Screen<W> {
    pub(super) fn new(out: W) -> Self {
        // See no-color.org.
        let colours = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        Self { out, colours, columns: 0, rows: 0 }
    }

    /// Draws over the previous block.
    pub(super) fn draw(&mut self, block: &Buffer) -> io::Result<()> {
        let (columns, rows) = (block.area.width, block.area.height);
        if columns == 0 || rows == 0 {
            return Ok(());
        }
        tty::screen_changes();
        // As one update where the terminal can do that, without a cursor, and without wrapping:
        // lines would break if a window is made narrower meanwhile.
        let mut text = String::from("\x1b[?2026h\x1b[?25l\x1b[?7l");
        self.to_top(&mut text, columns);
        for row in 0..rows {
            if row > 0 {
                text.push_str("\r\n");
            }
            self.line(&mut text, block, row);
        }
        text.push_str("\x1b[?2026l");
        (self.columns, self.rows) = (columns, rows);
        self.out.write_all(text.as_bytes())?;
        self.out.flush()
    }

    pub(super) fn clear(&mut self) -> io::Result<()> {
        let mut text = String::new();
        self.to_top(&mut text, self.columns);
        text.push_str(tty::PLAIN_SCREEN);
        self.rows = 0;
        self.out.write_all(text.as_bytes())?;
        self.out.flush()
    }

    /// Moves to the beginning of the block, and clears it.
    fn to_top(&self, text: &mut String, columns: u16) {
        // A terminal that was made narrower has wrapped the previous lines.
        let wraps = self.columns.div_ceil(columns.max(1)).max(1);
        let up = self.rows.saturating_mul(wraps).saturating_sub(1);
        text.push('\r');
        if up > 0 {
            let _ = write!(text, "\x1b[{up}A");
        }
        if self.rows > 0 {
            text.push_str("\x1b[J");
        }
    }

    fn line(&self, text: &mut String, block: &Buffer, row: u16) {
        let cells = (0..block.area.width).filter_map(|column| block.cell((column, row)));
        let mut style = String::new();
        let mut line = String::new();
        let mut skip = 0;
        for cell in cells {
            // A wide character also takes the place of the next cell.
            if skip > 0 {
                skip -= 1;
                continue;
            }
            let wanted = if self.colours { sgr(cell) } else { String::new() };
            if wanted != style {
                let _ = write!(line, "\x1b[0{wanted}m");
                style = wanted;
            }
            line.push_str(cell.symbol());
            skip = ratatui::text::Span::raw(cell.symbol()).width().saturating_sub(1);
        }
        text.push_str(line.trim_end());
        if !style.is_empty() {
            text.push_str("\x1b[0m");
        }
    }
}

/// The style of a cell, as parameters of a sequence. We use no other colours than these.
fn sgr(cell: &Cell) -> String {
    let colour = match cell.fg {
        Color::Red => ";31",
        Color::Green => ";32",
        Color::Yellow => ";33",
        Color::Cyan => ";36",
        _ => "",
    };
    let bold = if cell.modifier.contains(Modifier::BOLD) { ";1" } else { "" };
    let dim = if cell.modifier.contains(Modifier::DIM) { ";2" } else { "" };
    format!("{bold}{dim}{colour}")
}

#[cfg(test)]
mod tests {
    use ratatui::layout::Rect;
    use ratatui::style::Style;

    use super::*;

    fn block(lines: &[&str]) -> Buffer {
        let mut block = Buffer::empty(Rect::new(0, 0, 10, lines.len() as u16));
        for (row, line) in lines.iter().enumerate() {
            block.set_string(0, row as u16, line, Style::new());
        }
        block
    }

    fn screen() -> Screen<Vec<u8>> {
        Screen { out: Vec::new(), colours: true, columns: 0, rows: 0 }
    }

    fn take(screen: &mut Screen<Vec<u8>>) -> String {
        String::from_utf8(std::mem::take(&mut screen.out)).unwrap()
    }

    #[test]
    fn a_block_is_drawn_over_itself_and_taken_away() {
        let mut screen = screen();
        screen.draw(&block(&["one", "two"])).unwrap();
        let first = take(&mut screen);
        assert!(first.contains("\rone\r\ntwo"), "{first:?}");
        screen.draw(&block(&["three", "four", "five"])).unwrap();
        let second = take(&mut screen);
        assert!(second.contains("\r\x1b[1A\x1b[Jthree\r\nfour\r\nfive"), "{second:?}");
        screen.clear().unwrap();
        assert_eq!(take(&mut screen), format!("\r\x1b[2A\x1b[J{}", tty::PLAIN_SCREEN));
        tty::restore();
    }

    #[test]
    fn a_narrower_window_has_wrapped_the_lines() {
        let mut screen = screen();
        screen.draw(&block(&["one", "two"])).unwrap();
        take(&mut screen);
        let mut narrow = block(&["one"]);
        narrow.resize(Rect::new(0, 0, 5, 1));
        screen.draw(&narrow).unwrap();
        assert!(take(&mut screen).contains("\r\x1b[3A\x1b[Jone"));
        tty::restore();
    }

    #[test]
    fn colours_end_with_the_line_and_wide_characters_keep_the_width() {
        let mut screen = screen();
        let mut drawn = block(&["", "\u{4f60}\u{597d}!"]);
        drawn.set_string(0, 0, "bad", Style::new().fg(Color::Red));
        screen.draw(&drawn).unwrap();
        let text = take(&mut screen);
        assert!(text.contains("\x1b[0;31mbad\x1b[0m"), "{text:?}");
        assert!(text.contains("\u{4f60}\u{597d}!"), "{text:?}");
        screen.colours = false;
        screen.draw(&drawn).unwrap();
        assert!(!take(&mut screen).contains("31m"));
        tty::restore();
    }
}
