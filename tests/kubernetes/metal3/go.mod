// The definitions of Metal3's kinds, which the tests install. Only files of the module are read: its sub-modules cannot be had,
// so nothing of it builds.
module hostler/tests/kubernetes/metal3

go 1.26.0

require github.com/metal3-io/baremetal-operator v0.13.0
