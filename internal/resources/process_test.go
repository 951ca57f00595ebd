package resources_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/resources"
)

// stat is /proc/42/stat with processor time in hundredths of a second.
func stat(user, system, pages int) string {
	return fmt.Sprintf("42 (a (worker) S) S 1 42 42 0 -1 0 0 0 0 0 %d %d 500 500 20 0 8 0 100 1000000 %d"+
		" 0 1 1 1 0 0 0 0 0 0 0 0 0 17 0 0 0 0 0 0 0 0 0 0 0 0 0 0\n", user, system, pages)
}

func TestTheProcessorsShareIsCountedSinceTheReadingBefore(t *testing.T) {
	t.Parallel()
	root := write(t)
	p := resources.NewProcess(root)
	for _, step := range []struct {
		at           time.Duration
		user, system int
		percent      float64
	}{
		{-5 * time.Second, 900, 100, 0}, // the first one has none before it
		{-4 * time.Second, 920, 130, 50},
		{-2 * time.Second, 1320, 330, 300},
		{-2 * time.Second, 1330, 330, 300},                      // at once again
		{-2*time.Second + 99*time.Millisecond, 1330, 330, 300},  // too soon
		{-2*time.Second + 100*time.Millisecond, 1330, 330, 100}, // and not lost
		{-1*time.Second + 100*time.Millisecond, 1330, 330, 0},   // idle
		{2*time.Second + 100*time.Millisecond, 1331, 330, 0.3},  // in tenths
		{3*time.Second + 100*time.Millisecond, 1000, 330, 0},    // never negative
	} {
		require.NoError(t, os.WriteFile(filepath.Join(root, "proc/42/stat"), []byte(stat(step.user, step.system, 7)), 0o600))
		usage, ok := p.Read(step.at)
		require.True(t, ok)
		require.InDelta(t, step.percent, usage.CPUPercent, 1e-9, "at %v", step.at)
		require.EqualValues(t, 7*os.Getpagesize(), usage.ResidentBytes)
	}
}

func TestAProcessThatCannotBeReadIsUnknown(t *testing.T) {
	t.Parallel()
	root := write(t)
	p := resources.NewProcess(root)
	_, ok := p.Read(0)
	require.False(t, ok)
	file := filepath.Join(root, "proc/42/stat")
	for _, malformed := range []string{"", "42", "42 (worker) S 1 2 three\n"} {
		require.NoError(t, os.WriteFile(file, []byte(malformed), 0o600))
		_, ok = p.Read(time.Second)
		require.False(t, ok, malformed)
	}
	require.NoError(t, os.WriteFile(file, []byte(stat(100, 0, 7)), 0o600))
	usage, ok := p.Read(2 * time.Second)
	require.True(t, ok)
	require.Zero(t, usage.CPUPercent, "the first that succeeds is the first reading")
	require.NoError(t, os.RemoveAll(filepath.Join(root, "proc")))
	_, ok = p.Read(3 * time.Second)
	require.False(t, ok)
}
