package deploy

import (
	"debug/buildinfo"
	"debug/elf"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/moby/patternmatcher"
	"github.com/moby/patternmatcher/ignorefile"
	"github.com/stretchr/testify/require"
)

func bearing(t *testing.T, token string) *http.Request {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://pinboard/registry/register", nil)
	require.NoError(t, err)
	r.Header.Set("Authorization", "Bearer "+token)
	return r
}

func hostOf(t *testing.T, text string) string {
	t.Helper()
	u, err := url.Parse(text)
	require.NoError(t, err)
	require.Equal(t, "8000", u.Port())
	return u.Hostname()
}

func read(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, name))
	require.NoError(t, err)
	return string(text)
}

// buildContext copies what .dockerignore lets through.
func buildContext(t *testing.T) string {
	t.Helper()
	patterns, err := ignorefile.ReadAll(strings.NewReader(read(t, ".dockerignore")))
	require.NoError(t, err)
	ignored, err := patternmatcher.New(patterns)
	require.NoError(t, err)
	to := t.TempDir()
	require.NoError(t, filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		if entry.IsDir() {
			if name == ".git" || name == ".cache" {
				return fs.SkipDir
			}
			return nil
		}
		if out, err := ignored.MatchesOrParentMatches(filepath.ToSlash(name)); err != nil || out {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if err := os.MkdirAll(filepath.Join(to, filepath.Dir(name)), 0o755); err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(to, name), text, 0o644)
	}))
	return to
}

// The Dockerfile's own command, on what the build gets to see, makes a program
// that needs nothing else of its image.
func TestTheImagesProgramNeedsNothingBesideIt(t *testing.T) {
	t.Parallel()
	build := regexp.MustCompile(`(?m)^RUN (CGO_ENABLED=0 go build .*)$`).FindStringSubmatch(read(t, "Dockerfile"))
	require.NotNil(t, build)
	from := buildContext(t)
	for _, pkg := range []string{"./cmd/pinboard", "./examples/counter"} {
		image := t.TempDir()
		line := strings.NewReplacer("/out/app", filepath.Join(image, "app"), "${PACKAGE}", pkg).Replace(build[1])
		compile := exec.CommandContext(t.Context(), "sh", "-c", line)
		compile.Dir = from
		out, err := compile.CombinedOutput()
		require.NoError(t, err, "%s", out)

		if pkg == "./cmd/pinboard" {
			requireProfile(t, filepath.Join(image, "app"))
		}
		program, err := elf.Open(filepath.Join(image, "app"))
		require.NoError(t, err)
		for _, part := range program.Progs {
			require.NotEqual(t, elf.PT_INTERP, part.Type, "it is linked dynamically")
		}
		libraries, _ := program.ImportedLibraries()
		require.Empty(t, libraries)
		require.NoError(t, program.Close())

		// It begins, as somebody else, with an empty file system: it says what is
		// wrong with its variables.
		require.NoError(t, os.Chmod(image, 0o755)) // another user reads it
		run := exec.CommandContext(t.Context(), "/app")
		run.Dir, run.Env = "/", []string{"PORT=none", "PINBOARD_URL="}
		run.SysProcAttr = confined(image)
		out, err = run.CombinedOutput()
		var exit *exec.ExitError
		require.ErrorAs(t, err, &exit, "%s", out)
		require.Positive(t, exit.ExitCode(), "%s", out)
		require.Contains(t, string(out), "PINBOARD_", "%s", out)
	}
}

// requireProfile checks that the compiler had the profile that lies beside the server.
func requireProfile(t *testing.T, program string) {
	t.Helper()
	info, err := buildinfo.ReadFile(program)
	require.NoError(t, err)
	require.True(t, slices.ContainsFunc(info.Settings, func(s debug.BuildSetting) bool {
		return s.Key == "-pgo" && filepath.Base(s.Value) == "default.pgo"
	}), "%v", info.Settings)
}

// confined puts a program into a root of its own, as a user without rights.
func confined(root string) *syscall.SysProcAttr {
	const nobody = 65532
	if os.Getuid() == 0 {
		return &syscall.SysProcAttr{Chroot: root, Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	}
	return &syscall.SysProcAttr{
		Chroot: root, Cloneflags: syscall.CLONE_NEWUSER,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: nobody, HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: nobody, HostID: os.Getgid(), Size: 1}},
	}
}

// The context holds no secret, history or cache, whatever lies in a checkout.
func TestTheBuildSeesSourcesAlone(t *testing.T) {
	t.Parallel()
	patterns, err := ignorefile.ReadAll(strings.NewReader(read(t, ".dockerignore")))
	require.NoError(t, err)
	ignored, err := patternmatcher.New(patterns)
	require.NoError(t, err)
	for name, want := range map[string]bool{
		"go.mod": false, "worker/worker.go": false, "internal/store/redis/lua/resolve.lua": false, "examples/chat/page.html": false, "internal/ui/static/app.js": false, "internal/ui/static/style.css": false, "internal/ui/static/icon.svg": false, "cmd/pinboard/default.pgo": false,
		".git/config": true, ".env": true, ".cache/venv/x.go": true, "key.pem": true, "worker/worker_test.go": true, "examples/kubernetes/base/secret.yaml": true,
	} {
		out, err := ignored.MatchesOrParentMatches(name)
		require.NoError(t, err)
		require.Equal(t, want, out, name)
	}
}

// Whoever builds the image builds with a Go that docs/operating.md advises; .ci/vuln
// looks for faults of that one.
func TestTheDockerfileSaysWhoRunsWhat(t *testing.T) {
	t.Parallel()
	text := read(t, "Dockerfile")
	version := regexp.MustCompile(`(?m)^ARG GO_VERSION=(1\.\d+\.\d+)$`).FindStringSubmatch(text)
	require.NotNil(t, version, "a release of Go is pinned")
	require.Contains(t, read(t, "docs/operating.md"), "takes "+version[1])
	last := text[strings.LastIndex(text, "\nFROM "):]
	require.Contains(t, last, "FROM scratch\n")
	require.Contains(t, last, "\nUSER 65532:65532\n")
	require.Contains(t, last, "\nENTRYPOINT [\"/app\"]\n")
	require.Contains(t, last, "ca-certificates.crt")
	require.NotContains(t, last, "\nRUN ", "there is no shell")
}
