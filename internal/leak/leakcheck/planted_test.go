package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// The check that never finds anything must be one that would have.
func TestPlantedLeaksAreFound(t *testing.T) {
	t.Parallel()
	program := filepath.Join(t.TempDir(), "planted")
	out, err := exec.CommandContext(t.Context(), "go", "build", "-tags", "leakcheck", "-o", program, "./testdata/planted").CombinedOutput()
	require.NoError(t, err, "%s", out)
	for how, leaks := range map[string]bool{
		"hidden": false, "debug": true, "any": true, "bytes": true, "error": true, "answer": true, "print": true, "panic": true,
	} {
		dir := kept(t, nil, nil)
		cmd := exec.CommandContext(t.Context(), program, how)
		cmd.Env = append(os.Environ(), "LEAKCHECK_DIR="+dir)
		printed, _ := cmd.CombinedOutput() // a panic is no failure here
		// As run does with what tests print.
		require.NoError(t, os.WriteFile(filepath.Join(dir, "output", "go"), printed, 0o600))
		var told bytes.Buffer
		err := scan(dir, &told)
		require.Equal(t, leaks, err != nil, "%s: %v %s", how, err, told.String())
		require.Contains(t, told.String(), "looked for 1 secrets", how)
	}
}
