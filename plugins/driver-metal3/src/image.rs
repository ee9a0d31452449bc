//! What is written to the disk: from the OS image that the claim names, or from properties.

use hostler_sdk::Failure;
use hostler_sdk::driver::Order;
use serde_json::{Value, json};

pub(crate) const URL: &str = "metal3.vcluster.com/image-url";
pub(crate) const CHECKSUM: &str = "metal3.vcluster.com/image-checksum";
pub(crate) const CHECKSUM_TYPE: &str = "metal3.vcluster.com/image-checksum-type";
pub(crate) const FORMAT: &str = "metal3.vcluster.com/image-format";

const TYPES: [&str; 3] = ["md5", "sha256", "sha512"];
const FORMATS: [&str; 5] = ["raw", "qcow2", "vdi", "vmdk", "live-iso"];

/// `spec.image` of the host.
///
/// One source gives all of it: the checksum of one image beside the URL of another would be an install that never ends.
pub(crate) fn of(order: &Order) -> Result<Value, Failure> {
    let named = order
        .os_image
        .as_ref()
        .filter(|image| property(image, URL).is_some());
    let get = |key: &str| match named {
        Some(image) => property(image, key),
        None => order.properties.get(key).filter(|value| !value.is_empty()),
    };
    let source = match (named, &order.os_image) {
        (Some(image), _) => format!("OSImage {}", image.name),
        (None, Some(image)) => format!("OSImage {} and the claim's properties", image.name),
        (None, None) => "the claim's properties".to_owned(),
    };
    let refuse = |key: &str, what: &str| {
        Failure::refused("NoImage", format!("{source}: {key} {what}")).remedy(format!(
            "set {key} in the OSImage, or name another in vcluster.com/os-image"
        ))
    };
    let url = get(URL).ok_or_else(|| refuse(URL, "is missing"))?;
    if !["http://", "https://", "oci://", "file://"]
        .iter()
        .any(|scheme| url.starts_with(scheme))
    {
        return Err(refuse(URL, "is no http, https, oci or file URL"));
    }
    let mut image = json!({"url": url});
    let format = get(FORMAT);
    if let Some(format) = format {
        if !FORMATS.contains(&format) {
            return Err(refuse(FORMAT, "is none of raw, qcow2, vdi, vmdk, live-iso"));
        }
        image["format"] = json!(format);
    }
    match get(CHECKSUM) {
        Some(checksum) => image["checksum"] = json!(checksum),
        // Metal3 wants one for everything that it copies to a disk itself.
        None if format == Some("live-iso") || url.starts_with("oci://") => {}
        None => return Err(refuse(CHECKSUM, "is missing")),
    }
    if let Some(kind) = get(CHECKSUM_TYPE) {
        if !TYPES.contains(&kind) {
            return Err(refuse(CHECKSUM_TYPE, "is none of md5, sha256, sha512"));
        }
        image["checksumType"] = json!(kind);
    }
    Ok(image)
}

fn property<'a>(image: &'a hostler_sdk::Object, key: &str) -> Option<&'a str> {
    image
        .at("/spec/properties")?
        .get(key)?
        .as_str()
        .filter(|value| !value.is_empty())
}
