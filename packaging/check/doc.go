// Package check holds the files of a release against what will read them: the chart against Helm and
// the types of Kubernetes, the list of crates against the schema of CycloneDX, and the workflows of
// GitHub against actionlint. `cargo xtask dist` runs it on the files that it has made:
//
//	SIMURGH_CHART=… SIMURGH_SBOM=… SIMURGH_BINARY=… go test ./packaging/check
//
// Without a variable the sources of the chart are checked, and the other tests are skipped.
package check
