//! PyTorch's own TCPStore, on both sides. Needs `RESHARD_PYTHON`: a Python with torch.
#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

use futures::executor::block_on;
use reshard_comm::ProcessGroup;
use reshard_comm_tcp::{Serve, StoreServer, TcpGroup};
use std::{
    ffi::OsString,
    io::{BufRead, BufReader},
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

const SERVES: &str = "
import sys, datetime
from torch.distributed import TCPStore
store = TCPStore('127.0.0.1', 0, None, True, datetime.timedelta(seconds=60), wait_for_workers=False, use_libuv=sys.argv[1] == 'uv')
print(store.port, flush=True)
sys.stdin.read()
";

const ASKS: &str = "
import sys, datetime
from torch.distributed import TCPStore, PrefixStore
port = int(sys.argv[1])
store = TCPStore('127.0.0.1', port, 1, False, datetime.timedelta(seconds=30), wait_for_workers=True)
store.set('k', 'v')
assert store.get('k') == b'v'
assert store.add('n', 2) == 2 and store.add('n', -5) == -3 and store.get('n') == b'-3'
assert store.check(['k']) and not store.check(['k', 'none'])
store.wait(['k', 'n'])
assert store.compare_set('c', '', 'x') == b'x' and store.compare_set('c', 'y', 'z') == b'x' and store.compare_set('c', 'x', 'z') == b'z'
assert store.delete_key('c') and not store.delete_key('c')
try:
    store.wait(['none'], datetime.timedelta(milliseconds=300))
    raise SystemExit('it waited for nothing')
except Exception as e:
    assert 'timeout' in str(e), e
assert store.get('k') == b'v', 'usable after a wait that was cancelled'
assert PrefixStore('reshard', store).add('n', 1) == 1
store.set('large', b'x' * 1000000)
assert len(store.get('large')) == 1000000
print('well', flush=True)
";

struct Python(Child);

impl Drop for Python {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// Starts a script. Returns it with the first line that it prints.
fn python(script: &str, argument: &str) -> (Python, String) {
    let python: OsString = std::env::var_os("RESHARD_PYTHON").unwrap();
    let mut child = Command::new(python)
        .args(["-c", script, argument])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let stdout = child.stdout.take().unwrap();
    let (said, line) = std::sync::mpsc::channel();
    thread::spawn(move || {
        let mut first = String::new();
        drop(BufReader::new(stdout).read_line(&mut first));
        drop(said.send(first));
    });
    let python = Python(child);
    let line = line.recv_timeout(Duration::from_secs(120)).unwrap();
    (python, line.trim().to_owned())
}

#[test]
#[ignore = "needs RESHARD_PYTHON; cargo xtask interop runs it"]
fn needs_python_ranks_meet_at_the_store_of_pytorch() {
    for backend in ["uv", "threads"] {
        let (_python, port) = python(SERVES, backend);
        let port: u16 = port.parse().unwrap();
        // The second groups of a job meet there, too.
        for _ in 0..2 {
            let ranks: Vec<_> = (0..3)
                .map(|rank| {
                    let builder = TcpGroup::builder().rank(rank, 3).master("127.0.0.1", port);
                    let builder = builder.serve(Serve::Auto).deadline(Duration::from_secs(60));
                    thread::spawn(move || {
                        let group = builder.connect().unwrap();
                        block_on(group.all_gather(vec![rank as u8].into()))
                            .unwrap()
                            .concat()
                    })
                })
                .collect();
            for rank in ranks {
                assert_eq!(rank.join().unwrap(), [0, 1, 2]);
            }
        }
    }
}

#[test]
#[ignore = "needs RESHARD_PYTHON; cargo xtask interop runs it"]
fn needs_python_pytorch_is_a_client_of_our_store() {
    let store = StoreServer::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let port = store.address().port().to_string();
    let (_python, said) = python(ASKS, &port);
    assert_eq!(said, "well");
}
