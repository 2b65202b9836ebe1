//! For tests of bars: a terminal that keeps all that was written to it.

use indicatif::{ProgressDrawTarget, TermLike};
use std::{
    io,
    sync::{Arc, Mutex},
};

/// So wide that no line of a test is cut.
const WIDTH: u16 = 200;

#[derive(Clone, Debug, Default)]
pub(crate) struct Screen(Arc<Mutex<String>>);

impl Screen {
    /// A bar draws to it.
    pub(crate) fn target(&self) -> ProgressDrawTarget {
        ProgressDrawTarget::term_like(Box::new(self.clone()))
    }

    /// All that was written so far.
    pub(crate) fn text(&self) -> String {
        self.0.lock().unwrap().clone()
    }
}

impl TermLike for Screen {
    fn width(&self) -> u16 {
        WIDTH
    }
    fn move_cursor_up(&self, _: usize) -> io::Result<()> {
        Ok(())
    }
    fn move_cursor_down(&self, _: usize) -> io::Result<()> {
        Ok(())
    }
    fn move_cursor_right(&self, _: usize) -> io::Result<()> {
        Ok(())
    }
    fn move_cursor_left(&self, _: usize) -> io::Result<()> {
        Ok(())
    }
    fn write_line(&self, text: &str) -> io::Result<()> {
        self.write_str(text)
    }
    fn write_str(&self, text: &str) -> io::Result<()> {
        self.0.lock().unwrap().push_str(text);
        Ok(())
    }
    fn clear_line(&self) -> io::Result<()> {
        Ok(())
    }
    fn flush(&self) -> io::Result<()> {
        Ok(())
    }
}
