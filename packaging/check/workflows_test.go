package check

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/rhysd/actionlint"
)

func TestActionlintAcceptsTheWorkflows(t *testing.T) {
	files, err := filepath.Glob("../../.github/workflows/*.yml")
	if err != nil || len(files) < 2 {
		t.Fatalf("%v: %v", files, err)
	}
	linter, err := actionlint.NewLinter(os.Stdout, &actionlint.LinterOptions{})
	if err != nil {
		t.Fatal(err)
	}
	found, err := linter.LintFiles(files, nil)
	if err != nil || len(found) > 0 {
		t.Errorf("%d mistakes: %v", len(found), err)
	}
}
