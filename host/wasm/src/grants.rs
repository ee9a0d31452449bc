//! The operator file `NAME.toml`: read for the catalog. What it may say is judged by `hostler_core::grant`.

use hostler_core::grant::Grant;
use serde_json::Value;

use crate::error::LoadError;
use crate::text;

/// The grant of a component; without a file nothing is granted and the limits are the usual ones.
pub(crate) fn parse(grant: Option<&str>) -> Result<Grant, LoadError> {
    let Some(grant) = grant else {
        return Ok(Grant::nothing());
    };
    Grant::parse(grant).map_err(|error| LoadError::GrantInvalid(text::message(&error.to_string())))
}

/// `[settings]` as the guest reads them.
pub(crate) fn settings(grant: &Grant) -> String {
    match &grant.settings {
        Value::Null => "{}".to_owned(),
        settings => settings.to_string(),
    }
}

/// The grant as it stands on the `Plugin` object, settings included.
pub(crate) fn shown(grant: &Grant) -> Value {
    let mut shown = grant.shown();
    let settings = grant.settings.as_object().filter(|settings| !settings.is_empty());
    if let (Some(shown), Some(settings)) = (shown.as_object_mut(), settings) {
        shown.insert("settings".to_owned(), Value::Object(settings.clone()));
    }
    shown
}
