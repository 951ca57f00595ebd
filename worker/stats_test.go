package worker

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/resources"
)

func TestStatsTellWhatTheProcessUses(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	proc := filepath.Join(root, "proc")
	require.NoError(t, os.MkdirAll(filepath.Join(proc, "42"), 0o755))
	require.NoError(t, os.Symlink("42", filepath.Join(proc, "self")))
	// uses writes the processor time in hundredths of a second, as user and as
	// system time, and the resident memory in pages.
	uses := func(user, system, pages int) {
		line := fmt.Sprintf("42 (a worker) S 1 42 42 0 -1 0 0 0 0 0 %d %d 0 0 20 0 8 0 100 1000000 %d"+
			" 0 1 1 1 0 0 0 0 0 0 0 0 0 17 0 0 0 0 0 0 0 0 0 0 0 0 0 0\n", user, system, pages)
		require.NoError(t, os.WriteFile(filepath.Join(proc, "42", "stat"), []byte(line), 0o600))
	}
	inBubble(t, Options{}, hosting(echo), func(t *testing.T, h *harness) {
		process := func() string {
			text, err := json.Marshal(h.w.Stats().Process)
			require.NoError(t, err)
			return string(text)
		}
		h.after(time.Second)
		require.JSONEq(t, `{"uptimeMs": 1000}`, process(), "without a /proc nothing is guessed")
		h.w.process = resources.NewProcess(root)
		uses(100, 50, 10)
		require.JSONEq(t, fmt.Sprintf(`{"uptimeMs": 1000, "rssBytes": %d, "cpuPercent": 0}`, 10*os.Getpagesize()), process())
		h.after(2 * time.Second)
		uses(300, 150, 20)
		require.JSONEq(t, fmt.Sprintf(`{"uptimeMs": 3000, "rssBytes": %d, "cpuPercent": 150}`, 20*os.Getpagesize()), process())
	})
}

func TestAWorkerMeasuresItsOwnProcess(t *testing.T) {
	t.Parallel()
	w, err := New(complete())
	require.NoError(t, err)
	if _, err := os.Stat("/proc/self/stat"); err != nil {
		require.Nil(t, w.Stats().Process.CPUPercent)
		return
	}
	s := w.Stats().Process
	require.NotNil(t, s.CPUPercent)
	require.Greater(t, s.RSSBytes, int64(1<<20))
}
