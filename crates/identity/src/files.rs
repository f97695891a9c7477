//! Reading and writing small files: bounded, private, and replaced at once.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

use crate::error::IdentityError;

/// Certificates.
pub(crate) const PUBLIC: u32 = 0o644;
/// Keys, and what only the authority needs.
pub(crate) const PRIVATE: u32 = 0o600;
/// Some thousand certificates, or some ten thousand revocations.
const FILE_MAX: u64 = 1 << 20;
/// The register of some hundred thousand certificates.
const REGISTER_MAX: u64 = 64 << 20;

/// The content of a file.
pub(crate) fn read(file: &Path, remedy: &'static str) -> Result<Vec<u8>, IdentityError> {
    read_at_most(FILE_MAX, file, remedy)
}

fn read_at_most(most: u64, file: &Path, remedy: &'static str) -> Result<Vec<u8>, IdentityError> {
    let fail = |source| IdentityError::File { file: file.to_owned(), source, remedy };
    let mut content = Vec::new();
    File::open(file).and_then(|f| f.take(most + 1).read_to_end(&mut content)).map_err(fail)?;
    match content.len() as u64 > most {
        true => Err(invalid(file, format!("it has more than {most} bytes; is it the right file?"))),
        false => Ok(content),
    }
}

/// The content of a text file of the authority.
pub(crate) fn read_text(file: &Path, remedy: &'static str) -> Result<String, IdentityError> {
    String::from_utf8(read_at_most(REGISTER_MAX, file, remedy)?)
        .map_err(|_| invalid(file, "it is not a text file; is it the right file?".to_owned()))
}

/// The content of a key file. Error: others may read it.
pub(crate) fn read_private(file: &Path, remedy: &'static str) -> Result<Vec<u8>, IdentityError> {
    let fail = |source| IdentityError::File { file: file.to_owned(), source, remedy };
    let found = std::fs::metadata(file).map_err(fail)?;
    let mode = found.mode() & 0o777;
    match is_private(found.uid(), mode) {
        true => read(file, remedy),
        false => Err(IdentityError::Permissions { file: file.to_owned(), mode }),
    }
}

/// Whether nobody but the owner may use a file. A file of root's may be readable for a group: that is how Kubernetes
/// hands secrets to processes that are not root's, and root chooses the group.
fn is_private(owner: u32, mode: u32) -> bool {
    match owner {
        0 => mode & 0o037 == 0,
        _ => mode & 0o077 == 0,
    }
}

/// Replaces a file: readers see the old content or the new one, also after a crash.
pub(crate) fn write(file: &Path, content: &[u8], mode: u32) -> Result<(), IdentityError> {
    let mut name = file.file_name().unwrap_or_default().to_owned();
    name.push(".new");
    let new = file.with_file_name(name);
    let replace = || {
        // What a crash left may have other permissions.
        let _ = std::fs::remove_file(&new);
        let mut out = OpenOptions::new().write(true).create_new(true).mode(mode).open(&new)?;
        out.set_permissions(std::fs::Permissions::from_mode(mode))?;
        out.write_all(content)?;
        out.sync_all()?;
        std::fs::rename(&new, file)
    };
    let remedy = "check the folder's permissions and its free space";
    replace().map_err(|source| IdentityError::File { file: file.to_owned(), source, remedy })
}

/// Makes a folder, and its parents, for its owner alone; an existing one stays as it is.
pub(crate) fn make_folder(folder: &Path) -> Result<(), IdentityError> {
    let remedy = "choose a folder that you may write";
    let made = DirBuilder::new().recursive(true).mode(0o700).create(folder);
    made.map_err(|source| IdentityError::File { file: folder.to_owned(), source, remedy })
}

/// A lock that other processes respect; dropping it releases the lock.
pub(crate) fn lock(folder: &Path) -> Result<File, IdentityError> {
    let file = folder.join("lock");
    let lock = || {
        let mut options = OpenOptions::new();
        let open = options.create(true).truncate(false).write(true).mode(PRIVATE).open(&file)?;
        open.lock().map(|()| open)
    };
    let remedy = "check the folder's permissions";
    lock().map_err(|source| IdentityError::File { file: file.clone(), source, remedy })
}

pub(crate) fn invalid(file: &Path, problem: String) -> IdentityError {
    IdentityError::Content { file: file.to_owned(), problem }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_may_read_what_root_gives_it_and_nobody_else_may() {
        for (owner, mode, expected) in [
            (0, 0o600, true),
            (0, 0o400, true),
            (0, 0o440, true),
            (0, 0o640, true),
            (0, 0o660, false),
            (0, 0o650, false),
            (0, 0o444, false),
            (0, 0o641, false),
            (65532, 0o600, true),
            (65532, 0o640, false),
            (65532, 0o604, false),
        ] {
            assert_eq!(is_private(owner, mode), expected, "{owner} {mode:o}");
        }
    }
}
