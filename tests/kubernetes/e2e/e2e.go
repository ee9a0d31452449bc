// Names the tests of Kubernetes whose binary is built here, so that `go mod tidy` keeps what they import. See ../README.md.
package e2e

import _ "k8s.io/kubernetes/test/e2e"
