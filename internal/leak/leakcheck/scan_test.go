package main

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const hush = "planted-0123456789abcdef-secret"

// kept makes a directory as a run leaves it.
func kept(t *testing.T, secrets []string, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for _, kind := range kinds {
		require.NoError(t, os.Mkdir(filepath.Join(dir, kind), 0o700))
	}
	var lines strings.Builder
	for _, secret := range secrets {
		lines.WriteString(strconv.Quote(secret) + "\n")
	}
	require.NoError(t, os.WriteFile(filepath.Join(dir, "secrets", "worker.test-7-1"), []byte(lines.String()), 0o600))
	for name, text := range files {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	return dir
}

func TestASecretIsFoundInEveryFormAndFile(t *testing.T) {
	t.Parallel()
	for form, shown := range map[string]string{
		"plain": hush, "head": hush[:window], "tail": hush[len(hush)-window:], "quoted": fmt.Sprintf("%q", hush),
		"hex": fmt.Sprintf("%x", hush), "upper hex": fmt.Sprintf("%X", hush), "bytes": fmt.Sprint([]byte(hush)),
		"base64": base64.StdEncoding.EncodeToString([]byte(hush)), "base64 of a pair": base64.StdEncoding.EncodeToString([]byte("user:" + hush)),
		"base64 of another": base64.URLEncoding.EncodeToString([]byte("u:" + hush)), "dump": hex.EncodeToString([]byte("x" + hush)),
	} {
		for _, kind := range kinds[1:] {
			dir := kept(t, []string{"short", hush}, map[string]string{kind + "/one": "before\na line with " + shown + " in it\nafter\n"})
			var out bytes.Buffer
			require.EqualError(t, scan(dir, &out), "1 lines show a secret", "%s in %s", form, kind)
			require.Contains(t, out.String(), "one shows a secret of worker.test-7-1")
			require.NotContains(t, out.String(), shown, "the report is none")
			require.Contains(t, out.String(), "a line with ")
			require.NotContains(t, out.String(), "after")
		}
	}
}

func TestWhatIsNoSecretIsNotFound(t *testing.T) {
	t.Parallel()
	row := strings.Repeat("a", 100)
	dir := kept(t, []string{hush, row, "Bearer"}, map[string]string{
		"log/one": hush[:window-1] + " " + hush[1:window] + "\n" + row + " Bearer", "said/none": "", "printed/short": "x",
	})
	var out bytes.Buffer
	require.NoError(t, scan(dir, &out))
	require.Contains(t, out.String(), "looked for 1 secrets")
}

// What a token says is known to many; that it was signed is not.
func TestOfATokenOnlyTheSignatureIsSecret(t *testing.T) {
	t.Parallel()
	const head, signature = "eyJhbGciOiJIUzI1NiJ9.eyJhdWQiOiJzZXNzaW9uIn0", "dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk"
	require.NoError(t, scan(kept(t, []string{head + "." + signature}, map[string]string{"log/one": head}), &bytes.Buffer{}))
	require.Error(t, scan(kept(t, []string{head + "." + signature}, map[string]string{"log/one": signature}), &bytes.Buffer{}))
}

func TestACheckWithoutSecretsFails(t *testing.T) {
	t.Parallel()
	require.ErrorContains(t, scan(kept(t, nil, nil), &bytes.Buffer{}), "nothing was checked")
	require.Error(t, scan(t.TempDir(), &bytes.Buffer{}))
}

// And a race, which is found in whatever test runs by then.
func TestOnlyWhatFailedIsShown(t *testing.T) {
	t.Parallel()
	const events = `{"Action":"output","Package":"p","Test":"TestA","Output":"said by A\n"}
{"Action":"output","Package":"p","Test":"TestB","Output":"said by B\n"}
{"Action":"output","Package":"p","Test":"TestA","Output":"==================\n"}
{"Action":"output","Package":"p","Test":"TestA","Output":"WARNING: DATA RACE\n"}
{"Action":"output","Package":"p","Test":"TestA","Output":"Read at 0x1\n"}
{"Action":"output","Package":"p","Test":"TestA","Output":"==================\n"}
{"Action":"output","Package":"p","Test":"TestA","Output":"said by A again\n"}
{"Action":"pass","Package":"p","Test":"TestA"}
{"Action":"fail","Package":"p","Test":"TestB"}
not JSON
{"Action":"build-output","ImportPath":"p","Output":"does not compile\n"}
{"Action":"output","Package":"p","Output":"panic: outside of tests\n"}
{"Action":"fail","Package":"p","Elapsed":1.25}
{"Action":"output","Package":"q","Output":"ok q\n"}
{"Action":"pass","Package":"q","Elapsed":2}
`
	var all, short bytes.Buffer
	require.NoError(t, summarise(strings.NewReader(events), &all, &short))
	require.Equal(t, "WARNING: DATA RACE\nRead at 0x1\nsaid by B\nnot JSON\ndoes not compile\npanic: outside of tests\nfail\tp\t1.2s\npass\tq\t2.0s\n", short.String())
	for _, text := range []string{"said by A", "said by B", "outside of tests", "ok q"} {
		require.Contains(t, all.String(), text)
	}
}
