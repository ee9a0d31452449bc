//! Bytes from the plugin directory, read with care: whatever stands there under the name of a component.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, Read as _};
use std::os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

use crate::error::LoadError;

/// Size of the largest component that is taken, unless the options say otherwise. A Python guest has 18 MB.
pub(crate) const LARGEST: u64 = 64 << 20;

/// Size of the largest operator file.
const LARGEST_GRANT: u64 = 256 << 10;

/// One `NAME.wasm` of the directory, with what stands beside it.
pub(crate) struct Found {
    pub(crate) name: String,
    pub(crate) component: Result<Vec<u8>, LoadError>,
    /// Text of `NAME.toml`; none where there is no such file.
    pub(crate) grant: Result<Option<String>, LoadError>,
}

/// Paths of all that claims to be a component, in name order.
///
/// # Errors
/// Where the directory itself cannot be read: then nothing is known of any of them.
pub(crate) fn list(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let mut paths = Vec::new();
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        let hidden = path
            .file_name()
            .is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
        if !hidden && path.extension().is_some_and(|extension| extension == "wasm") {
            paths.push(path);
        }
    }
    paths.sort();
    Ok(paths)
}

/// Reads one of them.
pub(crate) fn find(path: &Path, largest: u64) -> Found {
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    let name = object_name(&stem);
    let component = if name == stem {
        read(path, largest)
    } else {
        Err(LoadError::NameInvalid(stem.into_owned()))
    };
    Found {
        name,
        component,
        grant: read_grant(&path.with_extension("toml")),
    }
}

/// Reads a regular file of at most so many bytes. The size is checked before anything is read, and again while reading.
pub(crate) fn read(path: &Path, largest: u64) -> Result<Vec<u8>, LoadError> {
    let unreadable = |error: io::Error| LoadError::FileUnreadable(plain(&error));
    // Opening a pipe waits for a writer, so the kind is asked first; and it may change before the open, hence the flag.
    no_other_kind(&fs::metadata(path).map_err(unreadable)?)?;
    let nonblocking = OFlags::NONBLOCK.bits().cast_signed();
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(nonblocking)
        .open(path)
        .map_err(unreadable)?;
    let metadata = file.metadata().map_err(unreadable)?;
    no_other_kind(&metadata)?;
    let size = metadata.len();
    if size > largest {
        return Err(LoadError::FileTooLarge { size, limit: largest });
    }
    let bytes = read_bounded(&file, size, largest).map_err(unreadable)?;
    let size = bytes.len() as u64;
    if size > largest {
        return Err(LoadError::FileTooLarge { size, limit: largest });
    }
    if bytes.is_empty() {
        return Err(LoadError::FileEmpty);
    }
    Ok(bytes)
}

fn read_bounded(file: &File, size: u64, largest: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(usize::try_from(size).unwrap_or_default());
    file.take(largest + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn read_grant(path: &Path) -> Result<Option<String>, LoadError> {
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        _ => {}
    }
    let bytes = match read(path, LARGEST_GRANT) {
        Ok(bytes) => bytes,
        Err(LoadError::FileEmpty) => return Ok(Some(String::new())),
        Err(LoadError::NotAFile(what)) => {
            return Err(LoadError::GrantInvalid(format!(
                "is {what} and not a file; put the operator file there"
            )));
        }
        Err(LoadError::FileTooLarge { size, limit }) => {
            let what = format!("has {size} bytes, at most {limit} are read; write less");
            return Err(LoadError::GrantInvalid(what));
        }
        Err(error) => return Err(LoadError::GrantInvalid(error.to_string())),
    };
    String::from_utf8(bytes)
        .map(Some)
        .map_err(|_| LoadError::GrantInvalid("is not UTF-8 text; write it anew".to_owned()))
}

fn no_other_kind(metadata: &Metadata) -> Result<(), LoadError> {
    let kind = metadata.file_type();
    let what = if kind.is_file() {
        return Ok(());
    } else if kind.is_dir() {
        "a directory"
    } else if kind.is_fifo() {
        "a named pipe"
    } else if kind.is_socket() {
        "a socket"
    } else {
        "a device"
    };
    Err(LoadError::NotAFile(what))
}

/// The name that the `Plugin` object can have: the same, for every name that a component may have.
fn object_name(stem: &str) -> String {
    let lower = stem.to_lowercase();
    let dashed: String = lower
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() { c } else { '-' })
        .take(63)
        .collect();
    let name = dashed.trim_matches('-');
    if name.is_empty() {
        "unnamed".to_owned()
    } else {
        name.to_owned()
    }
}

/// The cause without the number that Rust adds.
fn plain(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound => "it is not there".to_owned(),
        io::ErrorKind::PermissionDenied => "permission denied".to_owned(),
        _ => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::usual("driver-metal3", "driver-metal3")]
    #[case::capitals("Driver_Metal3", "driver-metal3")]
    #[case::only_signs("--..--", "unnamed")]
    fn a_plugin_object_can_always_be_named(#[case] stem: &str, #[case] name: &str) {
        assert_eq!(object_name(stem), name);
    }

    #[test]
    fn a_pipe_a_directory_and_an_oversize_file_are_told_apart_without_reading() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        fs::create_dir(path("dir.wasm")).unwrap();
        rustix::fs::mknodat(
            rustix::fs::CWD,
            path("pipe.wasm"),
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::from_raw_mode(0o600),
            0,
        )
        .unwrap();
        fs::write(path("large.wasm"), vec![0; 100]).unwrap();
        // A hole: reading it whole would take a terabyte.
        File::create(path("huge.wasm")).unwrap().set_len(1 << 40).unwrap();
        assert_eq!(
            read(&path("dir.wasm"), 10),
            Err(LoadError::NotAFile("a directory"))
        );
        assert_eq!(
            read(&path("pipe.wasm"), 10),
            Err(LoadError::NotAFile("a named pipe"))
        );
        assert_eq!(
            read(&path("large.wasm"), 99),
            Err(LoadError::FileTooLarge { size: 100, limit: 99 })
        );
        assert_eq!(
            read(&path("huge.wasm"), 10),
            Err(LoadError::FileTooLarge {
                size: 1 << 40,
                limit: 10
            })
        );
        assert_eq!(read(&path("none.wasm"), 10).unwrap_err().code(), "FileUnreadable");
    }
}
