//! Logs of a pod: asked of the kubelet of its node, and handed on as they come.

use http::{Response, StatusCode};
use serde_json::Value;

use super::Call;
use crate::answer::{Body, text_answer};
use crate::kubelets::encoded;
use crate::query::not_a_number;
use crate::status::{ApiError, Cause};
use crate::store::object::Key;

/// `GET …/pods/<name>/log`
pub(super) async fn log(call: &Call) -> Result<Response<Body>, ApiError> {
    let options = Options::parse(call)?;
    let pod = call.current().ok_or_else(|| call.not_found())?.value();
    let container = container(&pod, &call.target.name, &options.container)?;
    let node = pod["spec"]["nodeName"].as_str().unwrap_or_default();
    if node.is_empty() {
        // As the real server has it: who runs nowhere has said nothing.
        let mut nothing = text_answer(StatusCode::NO_CONTENT, "");
        nothing.headers_mut().remove(http::header::CONTENT_TYPE);
        return Ok(nothing);
    }
    let found = call.storage.get(&call.cluster, "nodes", &Key::new("", node));
    let found = found.ok_or_else(|| ApiError::not_found("", "nodes", node))?;
    let (namespace, name) = (&call.target.namespace, &call.target.name);
    let path = format!(
        "/containerLogs/{}/{}/{}{}",
        encoded(namespace),
        encoded(name),
        encoded(container),
        options.query
    );
    call.kubelets
        .get(
            &call.cluster,
            &found.value(),
            &path,
            ("pods/log", name),
            &call.stop,
        )
        .await
}

/// Parameters of the request, as far as they are ours to check; the rest is the kubelet's.
struct Options {
    container: String,
    /// What the kubelet gets, with its question mark.
    query: String,
}

impl Options {
    fn parse(call: &Call) -> Result<Self, ApiError> {
        let (mut container, mut query) = (String::new(), Vec::new());
        let mut wrong = Vec::new();
        let mut since = 0;
        for (name, value) in &call.query.others {
            match name.as_str() {
                "container" => container.clone_from(value),
                "follow" | "previous" | "timestamps" => {
                    let off = matches!(value.to_ascii_lowercase().as_str(), "" | "0" | "false");
                    query.extend((!off).then(|| format!("{name}=true")));
                }
                "tailLines" | "limitBytes" | "sinceSeconds" => {
                    let number: i64 = value
                        .parse()
                        .map_err(|_| ApiError::bad_request(not_a_number("ParseInt", value)))?;
                    let least = i64::from(name != "tailLines");
                    if number < least {
                        let bound = if least == 0 {
                            "greater than or equal to 0"
                        } else {
                            "greater than 0"
                        };
                        let why = format!("must be {bound}");
                        wrong.push(Cause::invalid(name, &Value::from(number), why));
                    }
                    since += i32::from(name == "sinceSeconds");
                    query.push(format!("{name}={number}"));
                }
                "sinceTime" => {
                    since += 1;
                    query.push(format!("sinceTime={}", encoded(value)));
                }
                _ => {}
            }
        }
        if since > 1 {
            let why = "at most one of `sinceTime` or `sinceSeconds` may be specified";
            wrong.push(Cause::forbidden("", why));
        }
        if !wrong.is_empty() {
            return Err(ApiError::invalid("", "PodLogOptions", &call.target.name, &wrong));
        }
        let query = if query.is_empty() {
            String::new()
        } else {
            format!("?{}", query.join("&"))
        };
        Ok(Self { container, query })
    }
}

/// The container that is meant.
fn container<'p>(pod: &'p Value, name: &str, asked: &'p str) -> Result<&'p str, ApiError> {
    let of = |list: &str| -> Vec<&'p str> {
        let containers = pod["spec"][list].as_array();
        containers
            .into_iter()
            .flatten()
            .filter_map(|container| container["name"].as_str())
            .collect()
    };
    let (inits, main, late) = (of("initContainers"), of("containers"), of("ephemeralContainers"));
    let all = [inits.as_slice(), &main, &late].concat();
    match (asked, main.as_slice()) {
        ("", [only]) => Ok(only),
        ("", _) => Err(ApiError::bad_request(format!(
            "a container name must be specified for pod {name}, choose one of: [{}]",
            all.join(" ")
        ))),
        (asked, _) if all.contains(&asked) => Ok(asked),
        (asked, _) => Err(ApiError::bad_request(format!(
            "container {asked} is not valid for pod {name}"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    #[rstest]
    #[case::the_only_one(json!({"containers": [{"name": "a"}], "initContainers": [{"name": "i"}]}), "", Ok("a"))]
    #[case::one_that_starts_it(json!({"containers": [{"name": "a"}], "initContainers": [{"name": "i"}]}), "i", Ok("i"))]
    #[case::none_of_several(
        json!({"containers": [{"name": "a"}, {"name": "b"}], "initContainers": [{"name": "i"}]}), "",
        Err("a container name must be specified for pod p, choose one of: [i a b]")
    )]
    #[case::one_that_is_not_there(json!({"containers": [{"name": "a"}]}), "b", Err("container b is not valid for pod p"))]
    fn a_container_is_meant(#[case] spec: Value, #[case] asked: &str, #[case] expected: Result<&str, &str>) {
        let pod = json!({"spec": spec});
        let found = container(&pod, "p", asked).map_err(|error| error.message.clone());
        assert_eq!(
            found.as_deref().map_err(String::as_str),
            expected.as_ref().map(|name| *name).map_err(|why| *why)
        );
    }
}
