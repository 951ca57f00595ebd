package main

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestTheHeapHasAFloorUnlessItsMemoryIsLimited(t *testing.T) {
	t.Parallel()
	require.Len(t, newFloor(func(string) (string, bool) { return "", false }), floorSize)
	require.Nil(t, newFloor(func(name string) (string, bool) { return "64MiB", name == "GOMEMLIMIT" }))
}
