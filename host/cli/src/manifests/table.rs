//! The host's rights as a table for people: who grants them should know why each is there.

use hostler_controllers::rights::{self, Reach, Right};
use hostler_core::grant::KindGrant;
use hostler_core::seams::Access;

/// The tables of `docs/install.md`: on the platform, for a driver's kinds, in a tenant's API.
#[must_use]
pub fn markdown() -> String {
    let mut text = String::from("On the platform:\n\n");
    text.push_str(&table(&rights::platform()));
    for (access, what) in [
        (
            Access::Read,
            "For each kind that an operator file grants with `access = \"read\"`:",
        ),
        (Access::BorrowFields, "With `access = \"borrow-fields\"`:"),
        (Access::Manage, "With `access = \"manage\"`:"),
    ] {
        let grant = KindGrant {
            api_version: "GROUP/VERSION".to_owned(),
            kind: "machine".to_owned(),
            access,
            namespaces: vec!["NAMESPACE".to_owned()],
            places: Vec::new(),
            service_account: None,
        };
        text.push_str(&format!("\n{what}\n\n"));
        text.push_str(&table(&rights::provider(&grant, "PLURAL")));
    }
    text.push_str("\nIn a tenant's API:\n\n");
    text.push_str(&table(&rights::tenant()));
    text
}

fn table(rights: &[Right]) -> String {
    let mut text = String::from("| where | what | verbs | why |\n|---|---|---|---|\n");
    for right in rights {
        let place = match &right.reach {
            Reach::Everywhere => "everywhere".to_owned(),
            Reach::Home => "the host's namespace".to_owned(),
            Reach::Namespace(name) => format!("namespace `{name}`"),
        };
        let what = match right.group.as_str() {
            "" => format!("`{}`", right.resource),
            group => format!("`{}` of `{group}`", right.resource),
        };
        let named = match right.names.as_slice() {
            [] => String::new(),
            names => format!(", only `{}`", names.join("`, `")),
        };
        text.push_str(&format!(
            "| {place} | {what}{named} | {} | {} |\n",
            right.verbs.join(", "),
            right.why
        ));
    }
    text
}
