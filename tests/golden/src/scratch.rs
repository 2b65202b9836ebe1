use std::{
    fs, io,
    path::{Path, PathBuf},
};

/// A copy of a fixture that may be damaged; gone with the value.
#[derive(Debug)]
pub struct Scratch {
    folder: tempfile::TempDir,
}

impl Scratch {
    /// A copy of a folder of files.
    ///
    /// # Errors
    /// Of the file system.
    pub fn of(folder: &Path) -> io::Result<Self> {
        let out = Self {
            folder: tempfile::tempdir()?,
        };
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            // Not fs::copy: fixtures may be read-only, the copies must not be.
            if entry.file_type()?.is_file() {
                fs::write(
                    out.folder.path().join(entry.file_name()),
                    fs::read(entry.path())?,
                )?;
            }
        }
        Ok(out)
    }

    /// Where a file of it lies.
    pub fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Its files by name, with their content.
    ///
    /// # Errors
    /// Of the file system.
    pub fn files(&self) -> io::Result<Vec<(String, Vec<u8>)>> {
        let mut out = Vec::new();
        for entry in fs::read_dir(self.folder.path())? {
            let entry = entry?;
            out.push((
                entry.file_name().to_string_lossy().into_owned(),
                fs::read(entry.path())?,
            ));
        }
        out.sort();
        Ok(out)
    }

    /// Its URL.
    pub fn url(&self) -> String {
        self.folder.path().display().to_string()
    }
}
