//! The file: what is durable, and how it is read back.
//!
//! One row per object under `cluster NUL table NUL namespace NUL name`, one row per cluster, a few settings, and the
//! format and the last revision. A batch is one transaction; it is on disk when [`Disk::commit`] returns.

use std::path::Path;
use std::sync::{Mutex, MutexGuard};

use bytes::Bytes;
use redb::backends::InMemoryBackend;
use redb::{
    Builder, Database, DatabaseError, ReadableDatabase, ReadableTable, StorageError, TableDefinition,
};

use super::object::{Key, Stored};
use crate::options::{OpenError, Store};

const FORMAT: u64 = 1;
/// Bytes of pages that the database keeps.
const CACHE: usize = 16 << 20;
const NUMBERS: TableDefinition<'_, &str, u64> = TableDefinition::new("numbers");
const CLUSTERS: TableDefinition<'_, &str, &str> = TableDefinition::new("clusters");
const SETTINGS: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("settings");
const OBJECTS: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("objects");

/// One row to write.
#[derive(Debug)]
pub(crate) enum Row {
    /// An object in place of what was there.
    Put {
        cluster: String,
        table: String,
        key: Key,
        bytes: Bytes,
    },
    /// An object no more.
    Remove {
        cluster: String,
        table: String,
        key: Key,
    },
    /// A cluster, with its uid.
    Cluster { name: String, uid: String },
    /// A cluster no more, nor anything in it.
    DropCluster { name: String },
    /// A setting.
    Setting { name: String, bytes: Vec<u8> },
}

/// What a file held when it was opened.
#[derive(Debug, Default)]
pub(crate) struct Contents {
    /// The last revision given out.
    pub(crate) revision: u64,
    /// Clusters and their uids.
    pub(crate) clusters: Vec<(String, String)>,
    /// Objects: cluster, table, object.
    pub(crate) objects: Vec<(String, String, Stored)>,
    /// Settings.
    pub(crate) settings: Vec<(String, Vec<u8>)>,
}

/// The open database.
#[derive(Debug)]
pub(crate) struct Disk {
    /// None once it is closed.
    database: Mutex<Option<Database>>,
}

impl Disk {
    /// Opens or creates it, and reads it all.
    pub(crate) fn open(place: &Store) -> Result<(Self, Contents), OpenError> {
        let database = match place {
            Store::Memory => builder()
                .create_with_backend(InMemoryBackend::new())
                .map_err(|error| refused(Path::new("memory"), error))?,
            Store::File(path) => open_file(path)?,
        };
        let path = match place {
            Store::Memory => Path::new("memory"),
            Store::File(path) => path.as_path(),
        };
        let contents = match format(&database).map_err(|error| corrupt(path, &error))? {
            Some(FORMAT) => read(&database, path)?,
            Some(found) => {
                return Err(OpenError::Format {
                    path: path.to_owned(),
                    found,
                    expected: FORMAT,
                });
            }
            None => {
                initialise(&database).map_err(|error| corrupt(path, &error))?;
                Contents::default()
            }
        };
        Ok((
            Self {
                database: Mutex::new(Some(database)),
            },
            contents,
        ))
    }

    /// Lets go of the file, at once for those who wait for it.
    pub(crate) fn close(&self) {
        drop(self.open_database().take());
    }

    fn open_database(&self) -> MutexGuard<'_, Option<Database>> {
        self.database
            .lock()
            .expect("nobody panics while holding the database")
    }

    /// Writes a batch; it is durable when this returns.
    pub(crate) fn commit(&self, rows: &[Row], revision: u64) -> Result<(), redb::Error> {
        let database = self.open_database();
        let database = database.as_ref().ok_or(redb::Error::DatabaseClosed)?;
        let mut transaction = database.begin_write()?;
        // Without this, a process that was killed scans the whole file when it starts again.
        transaction.set_quick_repair(true);
        {
            let mut objects = transaction.open_table(OBJECTS)?;
            let mut clusters = transaction.open_table(CLUSTERS)?;
            for row in rows {
                match row {
                    Row::Put {
                        cluster,
                        table,
                        key,
                        bytes,
                    } => {
                        objects.insert(row_name(cluster, table, key).as_str(), bytes.as_ref())?;
                    }
                    Row::Remove { cluster, table, key } => {
                        objects.remove(row_name(cluster, table, key).as_str())?;
                    }
                    Row::Cluster { name, uid } => {
                        clusters.insert(name.as_str(), uid.as_str())?;
                    }
                    Row::DropCluster { name } => {
                        clusters.remove(name.as_str())?;
                        let (from, to) = (format!("{name}\0"), format!("{name}\u{1}"));
                        objects.retain_in(from.as_str()..to.as_str(), |_, _| false)?;
                        let mut settings = transaction.open_table(SETTINGS)?;
                        settings.retain_in(from.as_str()..to.as_str(), |_, _| false)?;
                    }
                    Row::Setting { name, bytes } => {
                        transaction
                            .open_table(SETTINGS)?
                            .insert(name.as_str(), bytes.as_slice())?;
                    }
                }
            }
            transaction.open_table(NUMBERS)?.insert("revision", revision)?;
        }
        transaction.commit()?;
        Ok(())
    }
}

/// The format of the file; none for a fresh one. A file with tables but no format is not ours.
fn format(database: &Database) -> Result<Option<u64>, redb::Error> {
    let transaction = database.begin_read()?;
    if transaction.list_tables()?.next().is_none() {
        return Ok(None);
    }
    let numbers = match transaction.open_table(NUMBERS) {
        Ok(numbers) => numbers,
        Err(redb::TableError::TableDoesNotExist(_)) => return Ok(Some(0)),
        Err(error) => return Err(error.into()),
    };
    Ok(Some(numbers.get("format")?.map_or(0, |row| row.value())))
}

fn initialise(database: &Database) -> Result<(), redb::Error> {
    let transaction = database.begin_write()?;
    {
        transaction.open_table(NUMBERS)?.insert("format", FORMAT)?;
        transaction.open_table(CLUSTERS)?;
        transaction.open_table(SETTINGS)?;
        transaction.open_table(OBJECTS)?;
    }
    transaction.commit()?;
    Ok(())
}

fn read(database: &Database, path: &Path) -> Result<Contents, OpenError> {
    let rows = rows(database).map_err(|error| corrupt(path, &error))?;
    let mut contents = rows.0;
    for (row, bytes) in rows.1 {
        let parts: Vec<&str> = row.split('\0').collect();
        let [cluster, table, namespace, name] = parts.as_slice() else {
            return Err(corrupt(path, &format!("a row is named {row:?}")));
        };
        let object = Stored::thaw(Key::new(*namespace, *name), bytes)
            .map_err(|error| corrupt(path, &format!("{table} {namespace}/{name}: {error}")))?;
        contents
            .objects
            .push(((*cluster).to_owned(), (*table).to_owned(), object));
    }
    Ok(contents)
}

fn rows(database: &Database) -> Result<(Contents, Vec<(String, Bytes)>), redb::Error> {
    let transaction = database.begin_read()?;
    let revision = transaction
        .open_table(NUMBERS)?
        .get("revision")?
        .map_or(0, |row| row.value());
    let mut contents = Contents {
        revision,
        ..Contents::default()
    };
    for row in transaction.open_table(CLUSTERS)?.iter()? {
        let (name, uid) = row?;
        contents
            .clusters
            .push((name.value().to_owned(), uid.value().to_owned()));
    }
    for row in transaction.open_table(SETTINGS)?.iter()? {
        let (name, bytes) = row?;
        contents
            .settings
            .push((name.value().to_owned(), bytes.value().to_vec()));
    }
    let mut objects = Vec::new();
    for row in transaction.open_table(OBJECTS)?.iter()? {
        let (name, bytes) = row?;
        objects.push((name.value().to_owned(), Bytes::copy_from_slice(bytes.value())));
    }
    Ok((contents, objects))
}

fn row_name(cluster: &str, table: &str, key: &Key) -> String {
    format!("{cluster}\0{table}\0{}\0{}", key.namespace, key.name)
}

/// Everything that is read is in memory anyway; only what commits touch again is worth keeping here.
fn builder() -> Builder {
    let mut builder = Database::builder();
    builder.set_cache_size(CACHE);
    builder
}

fn open_file(path: &Path) -> Result<Database, OpenError> {
    if let Some(directory) = path
        .parent()
        .filter(|directory| !directory.as_os_str().is_empty())
        && !directory.is_dir()
    {
        return Err(OpenError::NoDirectory {
            path: path.to_owned(),
            directory: directory.to_owned(),
        });
    }
    // The database asserts what it believes of its own file; a file cut short breaks that belief with a panic.
    let opened = std::panic::catch_unwind(|| builder().create(path));
    match opened {
        Ok(opened) => opened.map_err(|error| refused(path, error)),
        Err(_) => Err(corrupt(path, &"it is shorter than it says")),
    }
}

fn refused(path: &Path, error: DatabaseError) -> OpenError {
    match error {
        DatabaseError::DatabaseAlreadyOpen | DatabaseError::LockProtocolMismatch => OpenError::Locked {
            path: path.to_owned(),
        },
        DatabaseError::UpgradeRequired(found) => OpenError::Format {
            path: path.to_owned(),
            found: found.into(),
            expected: FORMAT,
        },
        DatabaseError::Storage(StorageError::Io(source))
            if source.kind() == std::io::ErrorKind::InvalidData =>
        {
            corrupt(path, &"it is not a store")
        }
        DatabaseError::Storage(StorageError::Io(source))
            if matches!(
                source.kind(),
                std::io::ErrorKind::PermissionDenied
                    | std::io::ErrorKind::IsADirectory
                    | std::io::ErrorKind::NotFound
                    | std::io::ErrorKind::StorageFull
                    | std::io::ErrorKind::ReadOnlyFilesystem
            ) =>
        {
            OpenError::Io {
                path: path.to_owned(),
                source,
            }
        }
        other => corrupt(path, &other),
    }
}

fn corrupt(path: &Path, error: &dyn std::fmt::Display) -> OpenError {
    OpenError::Corrupt {
        path: path.to_owned(),
        why: error.to_string(),
    }
}
