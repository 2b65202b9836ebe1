//! The servers: each is installed once, listens at a port of its own, and ends with the value that stands for it.

use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

use crate::shell::{Program, root, say, target_dir, tool_with};
use crate::venv::CLOUDS;

/// The newest version that Rust 1.95 builds.
const S3S_FS: &str = "0.14.1";
/// The newest version for Node 20.
const AZURITE: &str = "azurite@3.35.0";
/// How long a server may take to listen. The machine may be busy.
const START: Duration = Duration::from_secs(120);

/// Makes the bucket of the tests. Clients of object stores can't.
const MAKE_BUCKET: &str = r#"
import sys, urllib.request
urllib.request.urlopen(urllib.request.Request(sys.argv[1] + "/reshard", method="PUT"))
"#;

/// The same in Azurite.
const MAKE_CONTAINER: &str = r#"
import sys
from azure.storage.blob import BlobServiceClient
key = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
BlobServiceClient(sys.argv[1], credential=key, api_version="2025-07-05").create_container("reshard")
"#;

/// A server that ends with this value. It has a bucket `reshard`.
pub(crate) struct Server {
    child: Child,
    pub(crate) url: String,
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended by itself.
        self.child.kill().unwrap_or_default();
        self.child.wait().map(drop).unwrap_or_default();
    }
}

/// moto, which speaks the protocol of S3. Parts of uploads may be small, so that tests have many of them without many bytes.
pub(crate) fn moto(data: &Path) -> Result<Server> {
    let (python, port) = (CLOUDS.python()?, free_port()?);
    let mut command = Command::new(python.with_file_name("moto_server"));
    command.args(["--host", "127.0.0.1", "--port", &port.to_string()]);
    command.env("S3_UPLOAD_PART_MIN_SIZE", "1");
    // What its memory does not take. Without a size of its own this follows the size of parts, and each object is an open file.
    command.env("MOTO_S3_DEFAULT_KEY_BUFFER_SIZE", (1 << 20).to_string());
    command.env("TMPDIR", data);
    let server = start(command, data, "moto", port)?;
    Program::new(&python)
        .args(["-c", MAKE_BUCKET, &server.url])
        .run()?;
    Ok(server)
}

/// s3s-fs, which speaks the same protocol and keeps files.
pub(crate) fn s3s(data: &Path) -> Result<Server> {
    std::fs::create_dir_all(data.join("s3s").join("reshard"))?;
    let port = free_port()?;
    let mut command = Command::new(tool_with("s3s-fs", S3S_FS, &["--features", "binary"])?);
    command.args(["--host", "127.0.0.1", "--port", &port.to_string()]);
    command.args(["--access-key", "reshard", "--secret-key", "not-secret"]);
    command.arg(data.join("s3s"));
    start(command, data, "s3s-fs", port)
}

/// Azurite, which speaks the protocol of Azure.
pub(super) fn azurite(data: &Path) -> Result<Server> {
    let (python, port) = (CLOUDS.python()?, free_port()?);
    let mut command = Command::new(install_azurite()?);
    command.args(["--blobHost", "127.0.0.1", "--blobPort", &port.to_string()]);
    command.args(["--silent", "--disableTelemetry", "--skipApiVersionCheck"]);
    command.arg("--location").arg(data.join("azurite"));
    let mut server = start(command, data, "azurite", port)?;
    // The path begins with the account.
    server.url.push_str("/devstoreaccount1");
    Program::new(&python)
        .args(["-c", MAKE_CONTAINER, &server.url])
        .run()?;
    Ok(server)
}

/// A port on which nobody listens now.
fn free_port() -> Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

fn start(mut command: Command, data: &Path, name: &str, port: u16) -> Result<Server> {
    let log = data.join(format!("{name}.log"));
    let out = std::fs::File::create(&log)?;
    command.current_dir(root()).stdin(Stdio::null());
    command.stdout(out.try_clone()?).stderr(out);
    let child = command
        .spawn()
        .with_context(|| format!("cannot start {name}"))?;
    let url = format!("http://127.0.0.1:{port}");
    let mut server = Server { child, url };
    let begin = Instant::now();
    while TcpStream::connect(("127.0.0.1", port)).is_err() {
        if let Some(status) = server.child.try_wait()? {
            bail!("{name} ended ({status}); see {}", log.display());
        }
        if begin.elapsed() > START {
            bail!("{name} does not listen; see {}", log.display());
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    say(format!("{name} listens at port {port}"));
    Ok(server)
}

/// Azurite, installed once.
fn install_azurite() -> Result<PathBuf> {
    let dir = target_dir().join("tools").join("azurite");
    let program = dir.join("node_modules").join(".bin").join("azurite-blob");
    if !program.exists() {
        say("azurite is installed once into target/tools");
        std::fs::create_dir_all(&dir)?;
        Program::new("npm")
            .args(["install", "--silent", "--no-audit", "--no-fund", "--prefix"])
            .args([dir.as_os_str()])
            .args([AZURITE])
            .run()
            .context("azurite needs Node.js 20 and npm")?;
    }
    Ok(program)
}
