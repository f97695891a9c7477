//! How ranks exchange handles, as by NCCL's bootstrap: each connects to a socket of the test and gets all ranks' bytes.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex};

/// Bytes of a handle.
pub const HANDLE: usize = 128;

pub struct Bootstrap {
    folder: tempfile::TempDir,
    progress: Arc<(Mutex<u64>, Condvar)>,
}

impl Bootstrap {
    pub fn start() -> Bootstrap {
        let folder = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(folder.path().join("meeting")).unwrap();
        let progress = Arc::new((Mutex::new(0), Condvar::new()));
        let counted = progress.clone();
        std::thread::spawn(move || serve(&listener, &counted));
        Bootstrap { folder, progress }
    }

    pub fn path(&self) -> PathBuf {
        self.folder.path().join("meeting")
    }

    /// Waits until ranks have ended so many schedules together.
    pub fn wait_for_progress(&self, schedules: u64) {
        let (count, changed) = &*self.progress;
        drop(changed.wait_while(count.lock().unwrap(), |count| *count < schedules).unwrap());
    }
}

fn serve(listener: &UnixListener, progress: &(Mutex<u64>, Condvar)) {
    let mut meetings: HashMap<u64, Vec<(u64, UnixStream, [u8; HANDLE])>> = HashMap::new();
    for stream in listener.incoming() {
        let Ok(mut stream) = stream else { return };
        let mut head = [[0; 8]; 3];
        let mut handle = [0; HANDLE];
        // A rank that dies while it speaks fails its test by itself.
        let read = head.iter_mut().try_for_each(|part| stream.read_exact(part));
        if read.and_then(|()| stream.read_exact(&mut handle)).is_err() {
            continue;
        }
        let [meeting, index, size] = head.map(u64::from_le_bytes);
        if size == 0 {
            *progress.0.lock().unwrap() += 1;
            progress.1.notify_all();
            continue;
        }
        let seats = meetings.entry(meeting).or_default();
        seats.push((index, stream, handle));
        if seats.len() as u64 == size {
            let mut seats = meetings.remove(&meeting).unwrap();
            seats.sort_by_key(|(index, ..)| *index);
            let all: Vec<u8> = seats.iter().flat_map(|(_, _, handle)| *handle).collect();
            for (_, mut stream, _) in seats {
                let _ = stream.write_all(&all);
            }
        }
    }
}

/// All ranks' handles, by index.
pub fn exchange(
    path: &Path,
    meeting: u64,
    (index, size): (usize, usize),
    own: &[u8; HANDLE],
) -> Vec<[u8; HANDLE]> {
    let mut stream = UnixStream::connect(path).unwrap();
    for number in [meeting, index as u64, size as u64] {
        stream.write_all(&number.to_le_bytes()).unwrap();
    }
    stream.write_all(own).unwrap();
    let read = |_| {
        let mut handle = [0; HANDLE];
        stream.read_exact(&mut handle).unwrap();
        handle
    };
    (0..size).map(read).collect()
}

/// Tells the test that this rank has ended a schedule.
pub fn tell_progress(path: &Path) {
    let mut stream = UnixStream::connect(path).unwrap();
    stream.write_all(&[0; 24 + HANDLE]).unwrap();
}
