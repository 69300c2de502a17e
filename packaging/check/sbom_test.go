package check

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	cyclonedx "github.com/CycloneDX/cyclonedx-go"
	"github.com/santhosh-tekuri/jsonschema/v6"
)

// The module of CycloneDX has the official schemas beside its sources.
func compileSchema(t *testing.T) *jsonschema.Schema {
	t.Helper()
	output, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/CycloneDX/cyclonedx-go").Output()
	if err != nil {
		t.Fatal(err)
	}
	directory := filepath.Join(strings.TrimSpace(string(output)), "schema")
	compiler := jsonschema.NewCompiler()
	for name, file := range map[string]string{
		"bom-1.6.schema.json":  "bom-1.6.schema.json",
		"spdx.schema.json":     "spdx.schema.json",
		"jsf-0.82.schema.json": "jsf-0.82.schemax.json",
	} {
		text, err := os.ReadFile(filepath.Join(directory, file))
		if err != nil {
			t.Fatal(err)
		}
		schema, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
		if err != nil {
			t.Fatal(err)
		}
		if err := compiler.AddResource("http://cyclonedx.org/schema/"+name, schema); err != nil {
			t.Fatal(err)
		}
	}
	schema, err := compiler.Compile("http://cyclonedx.org/schema/bom-1.6.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	return schema
}

func TestListOfCratesIsValidCycloneDX(t *testing.T) {
	file := os.Getenv("SIMURGH_SBOM")
	if file == "" {
		t.Skip("SIMURGH_SBOM names no file")
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	value, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	if err := compileSchema(t).Validate(value); err != nil {
		t.Error(err)
	}
	var bom cyclonedx.BOM
	if err := cyclonedx.NewBOMDecoder(bytes.NewReader(text), cyclonedx.BOMFileFormatJSON).Decode(&bom); err != nil {
		t.Fatal(err)
	}
	// Each component is in the graph, and each edge of it leads to one.
	known := map[string]bool{bom.Metadata.Component.BOMRef: true}
	for _, component := range *bom.Components {
		known[component.BOMRef] = true
	}
	if len(*bom.Dependencies) != len(known) {
		t.Errorf("%d of %d components are in the graph", len(*bom.Dependencies), len(known))
	}
	for _, dependency := range *bom.Dependencies {
		for _, ref := range append(*dependency.Dependencies, dependency.Ref) {
			if !known[ref] {
				t.Errorf("%s is no component", ref)
			}
		}
	}
}
