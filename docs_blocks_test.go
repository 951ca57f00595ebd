package pinboard_test

import (
	"encoding/json"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard"
)

// block is what a page shows of a program.
type block struct{ page, language, text string }

// blocks returns what README.md and docs/ show.
func blocks(t *testing.T) (all []block) {
	t.Helper()
	pages, err := filepath.Glob("docs/*.md")
	require.NoError(t, err)
	for _, page := range append(pages, "README.md") {
		text, err := os.ReadFile(page)
		require.NoError(t, err)
		var open *block
		for line := range strings.SplitSeq(string(text), "\n") {
			language, fence := strings.CutPrefix(strings.TrimSpace(line), "```")
			switch {
			case fence && open == nil:
				open = &block{page: page, language: language}
			case fence:
				all, open = append(all, *open), nil
			case open != nil:
				open.text += line + "\n"
			}
		}
		require.Nil(t, open, "%s: a block has no end", page)
	}
	return all
}

func of(all []block, language string) []block {
	return slices.DeleteFunc(slices.Clone(all), func(b block) bool { return b.language != language })
}

// code returns the lines of a program that count, without white space around them.
func code(text string) string {
	var lines []string
	for line := range strings.SplitSeq(text, "\n") {
		if line = strings.TrimSpace(line); line != "" {
			lines = append(lines, line)
		}
	}
	return "\n" + strings.Join(lines, "\n") + "\n"
}

// What a page shows in Go stands, line by line, in a file that is compiled, and as a
// rule run, with the tests.
func TestWhatPagesShowInGoIsCompiled(t *testing.T) {
	t.Parallel()
	var sources []string
	require.NoError(t, filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (d.Name() == "testdata" || strings.HasPrefix(d.Name(), ".") && path != ".") {
			return filepath.SkipDir
		}
		if strings.HasSuffix(path, ".go") {
			text, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			sources = append(sources, code(string(text)))
		}
		return nil
	}))
	shown := of(blocks(t), "go")
	require.NotEmpty(t, shown)
	for _, b := range shown {
		require.True(t, slices.ContainsFunc(sources, func(s string) bool { return strings.Contains(s, code(b.text)) }),
			"%s shows Go that is in no file:\n%s", b.page, b.text)
	}
}

var (
	used     = regexp.MustCompile(`\$\{?([A-Z][A-Z0-9_]+)`)
	assigned = regexp.MustCompile(`(?m)(?:^|\s)([A-Z][A-Z0-9_]+)=`)
)

func TestWhatPagesShowForAShellIsWellFormedAndItsVariablesExist(t *testing.T) {
	t.Parallel()
	known := map[string]bool{}
	_, _ = pinboard.ReadEnvironment(func(name string) (string, bool) { known[name] = true; return "", false })
	for _, dir := range []string{"worker", "internal/cli", "cmd/pinboard"} {
		for _, name := range variablesIn(t, dir) {
			known[name] = true
		}
	}
	var examples strings.Builder
	require.NoError(t, filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasPrefix(path, "examples/") && !strings.HasPrefix(path, ".ci/") && !strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		examples.Write(text)
		return err
	}))
	shown := of(blocks(t), "sh")
	require.NotEmpty(t, shown)
	for _, b := range shown {
		command := exec.CommandContext(t.Context(), "bash", "-n")
		command.Stdin = strings.NewReader(b.text)
		out, err := command.CombinedOutput()
		require.NoError(t, err, "%s: %s\n%s", b.page, out, b.text)
		for _, match := range append(used.FindAllStringSubmatch(b.text, -1), assigned.FindAllStringSubmatch(b.text, -1)...) {
			name := match[1]
			require.True(t, known[name] || regexp.MustCompile(`\b`+name+`\b`).MatchString(examples.String()),
				"%s names %s, which nobody reads:\n%s", b.page, name, b.text)
		}
		for _, match := range regexp.MustCompile(`\./[a-z.][a-zA-Z0-9/._-]*`).FindAllString(b.text, -1) {
			require.FileExists(t, filepath.Join(".", entry(match)), b.page)
		}
	}
}

// entry is a file of what a path names: a directory is a package.
func entry(path string) string {
	path = strings.TrimSuffix(path, "/...")
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		if files, _ := filepath.Glob(filepath.Join(path, "*")); len(files) > 0 {
			for _, f := range files {
				if info, err := os.Stat(f); err == nil && !info.IsDir() {
					return f
				}
			}
		}
	}
	return path
}

func TestWhatPagesShowInJSONIsJSON(t *testing.T) {
	t.Parallel()
	shown := of(blocks(t), "json")
	require.NotEmpty(t, shown)
	for _, b := range shown {
		text := strings.TrimSpace(b.text)
		if strings.HasPrefix(text, `"`) { // a member of an object
			text = "{" + text + "}"
		}
		require.True(t, json.Valid([]byte(text)), "%s:\n%s", b.page, b.text)
	}
}

// Links between pages lead to files, and to headings that are there.
func TestLinksOfPagesLeadSomewhere(t *testing.T) {
	t.Parallel()
	pages, err := filepath.Glob("docs/*.md")
	require.NoError(t, err)
	link := regexp.MustCompile(`\]\(([^)\s]+)\)`)
	found := 0
	for _, page := range append(pages, "README.md") {
		text, err := os.ReadFile(page)
		require.NoError(t, err)
		for _, match := range link.FindAllStringSubmatch(string(text), -1) {
			target, anchor, _ := strings.Cut(match[1], "#")
			if strings.Contains(target, "://") {
				continue
			}
			found++
			path := page
			if target != "" {
				path = filepath.Join(filepath.Dir(page), target)
			}
			_, err := os.Stat(path)
			require.NoError(t, err, "%s links to %s", page, match[1])
			if anchor != "" {
				require.Contains(t, anchors(t, path), anchor, "%s links to %s", page, match[1])
			}
		}
	}
	require.Greater(t, found, 50)
}

// anchors returns what can be linked to in a page, by the rules of GitHub.
func anchors(t *testing.T, page string) (all []string) {
	t.Helper()
	text, err := os.ReadFile(page)
	require.NoError(t, err)
	for line := range strings.SplitSeq(string(text), "\n") {
		if title, ok := strings.CutPrefix(strings.TrimLeft(line, "#"), " "); ok && strings.HasPrefix(line, "#") {
			all = append(all, regexp.MustCompile(`[^a-z0-9_ -]`).ReplaceAllString(strings.ToLower(title), ""))
			all[len(all)-1] = strings.ReplaceAll(all[len(all)-1], " ", "-")
		}
	}
	return all
}
