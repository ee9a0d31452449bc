//! What a CustomResourceDefinition may say about itself; its schemas are looked at in `node`.

use serde_json::Value;

use super::node;
use crate::fault::{self, Path};
use crate::metadata::{label_1035, subdomain};
use crate::status::Cause;

/// Everything that is wrong with a definition, in the words of the real server.
pub(super) fn check(crd: &Value) -> Vec<Cause> {
    let mut found = Vec::new();
    let root = Path::root();
    let spec = root.child("spec");
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let names = &crd["spec"]["names"];
    let (plural, group) = (text(&names["plural"]), text(&crd["spec"]["group"]));
    let name = text(&crd["metadata"]["name"]);
    if name != format!("{plural}.{group}") {
        let detail = "must be spec.names.plural+\".\"+spec.group";
        found.push(fault::invalid("metadata.name", &crd["metadata"]["name"], detail));
    }
    if group.is_empty() {
        found.push(fault::required(spec.child("group"), ""));
    } else if let Some(wrong) = joined(&subdomain(&group)) {
        found.push(fault::invalid(spec.child("group"), &crd["spec"]["group"], &wrong));
    } else if !group.contains('.') {
        let detail = "should be a domain with at least one dot";
        found.push(fault::invalid(spec.child("group"), &crd["spec"]["group"], detail));
    }
    if [".k8s.io", ".kubernetes.io"]
        .iter()
        .any(|end| format!(".{group}").ends_with(end))
    {
        let annotation = "api-approved.kubernetes.io";
        if text(&crd["metadata"]["annotations"][annotation]).is_empty() {
            let detail = format!(
                "protected groups must have approval annotation {annotation:?}, see \
                 https://github.com/kubernetes/enhancements/pull/1111"
            );
            found.push(fault::required(
                format!("metadata.annotations[{annotation}]"),
                &detail,
            ));
        }
    }
    match text(&crd["spec"]["scope"]).as_str() {
        "Cluster" | "Namespaced" => {}
        "" => found.push(fault::required(spec.child("scope"), "")),
        _ => {
            let scopes = ["Cluster", "Namespaced"];
            found.push(fault::not_supported(
                spec.child("scope"),
                &crd["spec"]["scope"],
                &scopes,
            ));
        }
    }
    if crd["spec"]["preserveUnknownFields"] == true {
        let detail = "cannot set to true, set x-kubernetes-preserve-unknown-fields to true in \
                      spec.versions[*].schema instead";
        found.push(fault::invalid(
            spec.child("preserveUnknownFields"),
            &Value::Bool(true),
            detail,
        ));
    }
    check_names(names, &spec.child("names"), &mut found);
    let strategy = text(&crd["spec"]["conversion"]["strategy"]);
    if !matches!(strategy.as_str(), "" | "None") {
        let at = spec.child("conversion");
        let at = at.child("strategy");
        found.push(fault::not_supported(
            at,
            &crd["spec"]["conversion"]["strategy"],
            &["None"],
        ));
    }
    versions(&crd["spec"]["versions"], &spec.child("versions"), &mut found);
    found
}

fn joined(messages: &[String]) -> Option<String> {
    (!messages.is_empty()).then(|| messages.join(","))
}

fn check_names(names: &Value, path: &Path<'_>, found: &mut Vec<Cause>) {
    for (field, mixed) in [
        ("plural", false),
        ("singular", false),
        ("kind", true),
        ("listKind", true),
    ] {
        let Some(text) = names[field].as_str().filter(|text| !text.is_empty()) else {
            found.push(fault::required(path.child(field), ""));
            continue;
        };
        let looked_at = if mixed {
            text.to_lowercase()
        } else {
            text.to_owned()
        };
        if let Some(wrong) = joined(&label_1035(&looked_at)) {
            let before = if mixed {
                "may have mixed case, but should otherwise match: "
            } else {
                ""
            };
            found.push(fault::invalid(
                path.child(field),
                &names[field],
                &format!("{before}{wrong}"),
            ));
        }
    }
    if names["kind"].is_string() && names["kind"] == names["listKind"] {
        let detail = "kind and listKind may not be the same";
        found.push(fault::invalid(path.child("listKind"), &names["listKind"], detail));
    }
    for field in ["shortNames", "categories"] {
        for (index, name) in names[field].as_array().into_iter().flatten().enumerate() {
            if let Some(wrong) = joined(&label_1035(name.as_str().unwrap_or_default())) {
                found.push(fault::invalid(path.child(field).index(index), name, &wrong));
            }
        }
    }
}

fn versions(list: &Value, path: &Path<'_>, found: &mut Vec<Cause>) {
    let list = list.as_array().map(Vec::as_slice).unwrap_or_default();
    let name = |version: &Value| version["name"].as_str().unwrap_or_default().to_owned();
    let is_shared = list
        .iter()
        .all(|version| version["schema"].is_object() && version["schema"] == list[0]["schema"]);
    for (index, version) in list.iter().enumerate() {
        let path = path.index(index);
        if let Some(wrong) = joined(&label_1035(&name(version))) {
            found.push(fault::invalid(path.child("name"), &version["name"], &wrong));
        }
        columns(
            &version["additionalPrinterColumns"],
            &path.child("additionalPrinterColumns"),
            found,
        );
        // One schema for all versions counts as the definition's own, and is told so.
        let root = Path::root();
        let spec = root.child("spec");
        let (schema_of_all, schema_of_one) = (spec.child("validation"), path.child("schema"));
        let at = if is_shared { &schema_of_all } else { &schema_of_one };
        let at = at.child("openAPIV3Schema");
        let schema = &version["schema"]["openAPIV3Schema"];
        if !schema.is_object() {
            found.push(fault::required(at, ""));
            continue;
        }
        if !version["subresources"]["status"].is_null() {
            root_with_status(schema, &at, found);
        }
        node::check(schema, &at, found);
        selectable(
            &version["selectableFields"],
            schema,
            &path.child("selectableFields"),
            found,
        );
    }
    let all = Value::Array(list.to_vec());
    let repeated = list
        .iter()
        .enumerate()
        .any(|(index, one)| list[..index].iter().any(|two| name(one) == name(two)));
    if repeated {
        found.push(fault::invalid(path, &all, "must contain unique version names"));
    }
    if list.iter().filter(|version| version["storage"] == true).count() != 1 {
        found.push(fault::invalid(
            path,
            &all,
            "must have exactly one version marked as storage version",
        ));
    }
}

/// With a status subresource, `status` is cut out of the schema, so nothing at the root may speak about it.
fn root_with_status(schema: &Value, path: &Path<'_>, found: &mut Vec<Cause>) {
    const ALLOWED: [&str; 22] = [
        "description",
        "type",
        "format",
        "title",
        "maximum",
        "exclusiveMaximum",
        "minimum",
        "exclusiveMinimum",
        "maxLength",
        "minLength",
        "pattern",
        "maxItems",
        "minItems",
        "uniqueItems",
        "multipleOf",
        "required",
        "items",
        "properties",
        "externalDocs",
        "example",
        "x-kubernetes-preserve-unknown-fields",
        "x-kubernetes-validations",
    ];
    const NAMES: &str = "[Description Type Format Title Maximum ExclusiveMaximum Minimum ExclusiveMinimum MaxLength \
                         MinLength Pattern MaxItems MinItems UniqueItems MultipleOf Required Items Properties \
                         ExternalDocs Example XPreserveUnknownFields XValidations]";
    let other = schema.as_object().into_iter().flatten().any(|(name, _)| {
        // `nullable` has a message of its own.
        !ALLOWED.contains(&name.as_str()) && name != "nullable"
    });
    if other {
        let detail = format!(
            "only {NAMES} fields are allowed at the root of the schema if the status subresource is enabled"
        );
        found.push(fault::invalid(path, schema, &detail));
    }
}

fn columns(list: &Value, path: &Path<'_>, found: &mut Vec<Cause>) {
    const TYPES: [&str; 5] = ["integer", "number", "string", "boolean", "date"];
    const FORMATS: [&str; 9] = [
        "int32",
        "int64",
        "float",
        "double",
        "byte",
        "date",
        "date-time",
        "password",
        "name",
    ];
    for (index, column) in list.as_array().into_iter().flatten().enumerate() {
        let path = path.index(index);
        let text = |name: &str| column[name].as_str().unwrap_or_default();
        if text("name").is_empty() {
            found.push(fault::required(path.child("name"), ""));
        }
        let types = "must be one of boolean,date,integer,number,string";
        if text("type").is_empty() {
            found.push(fault::required(path.child("type"), types));
        } else if !TYPES.contains(&text("type")) {
            found.push(fault::invalid(path.child("type"), &column["type"], types));
        }
        if !text("format").is_empty() && !FORMATS.contains(&text("format")) {
            let detail = "must be one of binary,byte,date,date-time,double,float,int32,int64,password";
            found.push(fault::invalid(path.child("format"), &column["format"], detail));
        }
        let at = path.child("JSONPath");
        match text("jsonPath") {
            "" => found.push(fault::required(at, "")),
            path if !path.starts_with('.') => {
                found.push(fault::invalid(
                    at,
                    &column["jsonPath"],
                    "must be a simple json path starting with .",
                ));
            }
            path if crate::table::JsonPath::parse(path).is_none() => {
                let detail = format!("unrecognized column definition {path:?}");
                found.push(fault::invalid(at, &column["jsonPath"], &detail));
            }
            _ => {}
        }
    }
}

fn selectable(list: &Value, schema: &Value, path: &Path<'_>, found: &mut Vec<Cause>) {
    let list = list.as_array().map(Vec::as_slice).unwrap_or_default();
    for (index, field) in list.iter().enumerate() {
        let at = path.index(index);
        let at = at.child("jsonPath");
        let text = field["jsonPath"].as_str().unwrap_or_default();
        if text.is_empty() {
            found.push(fault::required(at, ""));
            continue;
        }
        let Some(names) = text.strip_prefix('.') else {
            let detail = format!("is an invalid path: expected [ or . but got: {text}");
            found.push(fault::invalid(at, &field["jsonPath"], &detail));
            continue;
        };
        let target = names
            .split('.')
            .try_fold(schema, |node, name| node["properties"].get(name));
        match target {
            _ if names.starts_with("metadata") => {
                found.push(fault::invalid(
                    at,
                    &field["jsonPath"],
                    "must not point to fields in metadata",
                ));
            }
            None => {
                let detail = "is an invalid path: does not refer to a valid field";
                found.push(fault::invalid(at, &field["jsonPath"], detail));
            }
            Some(node) if !matches!(node["type"].as_str(), Some("string" | "boolean" | "integer")) => {
                let detail = "must point to a field of type string, boolean or integer. Enum string fields and \
                              strings with formats are allowed.";
                found.push(fault::invalid(at, &field["jsonPath"], detail));
            }
            Some(_) if list[..index].contains(field) => found.push(fault::duplicate(at, &field["jsonPath"])),
            Some(_) => {}
        }
    }
    if list.len() > 8 {
        found.push(fault::too_many(path, list.len(), 8));
    }
}
