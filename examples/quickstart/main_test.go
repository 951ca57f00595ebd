package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestAnIDIsPlacedCalledKeptAndMovedOn(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	require.NoError(t, run(t.Context(), &out, false))
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	require.Len(t, lines, 9, out.String())
	held := func(line string) string { _, by, _ := strings.Cut(line, "held by "); return by }
	require.Contains(t, lines[3], "alice is 1")
	require.Contains(t, lines[4], "alice is 2")
	require.Contains(t, lines[5], "alice is 3")
	require.Equal(t, held(lines[3]), held(lines[5]))
	require.Contains(t, lines[6], "bob is 1")
	require.Contains(t, lines[8], "alice is 1", "a new instance starts anew")
	require.NotEqual(t, held(lines[3]), held(lines[8]))
}
