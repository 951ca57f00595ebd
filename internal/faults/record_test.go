package faults_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/faults"
)

func TestAJournalIsReadUpToTheLineThatAKillCutShort(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "journal")
	for _, op := range []int64{1, 2} { // continued by another start
		j, err := faults.OpenJournal(path, "A")
		require.NoError(t, err)
		require.NoError(t, j.Write(faults.Event{Kind: faults.Served, ID: "x", Op: op, Begin: ms, End: 2 * ms}))
	}
	file, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	require.NoError(t, err)
	_, err = file.WriteString(`{"kind":"serv`)
	require.NoError(t, err)
	require.NoError(t, file.Close())
	events, err := faults.ReadJournal(path)
	require.NoError(t, err)
	require.Equal(t, []faults.Event{
		{Kind: faults.Served, Process: "A", ID: "x", Op: 1, Begin: ms, End: 2 * ms},
		{Kind: faults.Served, Process: "A", ID: "x", Op: 2, Begin: ms, End: 2 * ms},
	}, events)
}

func TestAJournalWithAWrongLineIsAnError(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "journal")
	require.NoError(t, os.WriteFile(path, []byte("{}\nnonsense\n"), 0o600))
	_, err := faults.ReadJournal(path)
	require.ErrorContains(t, err, "line 2")
	_, err = faults.ReadJournal(path + "-none")
	require.ErrorIs(t, err, os.ErrNotExist)
}
