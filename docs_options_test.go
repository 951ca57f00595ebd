package pinboard_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard"
)

// option is a field of a struct of options.
type option struct{ name, comment string }

// optionsOf returns the exported fields of a struct, with their comments on one line
// each. Several names of one field are one option each.
func optionsOf(t *testing.T, file, name string) (all []option) {
	t.Helper()
	parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ParseComments)
	require.NoError(t, err)
	ast.Inspect(parsed, func(n ast.Node) bool {
		spec, ok := n.(*ast.TypeSpec)
		if !ok || spec.Name.Name != name {
			return true
		}
		for _, field := range spec.Type.(*ast.StructType).Fields.List {
			for _, ident := range field.Names {
				if ident.IsExported() {
					all = append(all, option{ident.Name, strings.Join(strings.Fields(field.Doc.Text()), " ")})
				}
			}
		}
		return false
	})
	require.NotEmpty(t, all, "%s: %s", file, name)
	return all
}

// row is a row of a table: its cells, and the names in its first one.
type row struct {
	cells []string
	names []string
}

var quoted = regexp.MustCompile("`([^`]+)`")

// tables returns the rows of all tables below a heading, as far as the next one of
// its kind; of the whole page for none.
func tables(t *testing.T, page, heading string) (rows []row) {
	t.Helper()
	text, err := os.ReadFile(page)
	require.NoError(t, err)
	section := string(text)
	if heading != "" {
		_, after, found := strings.Cut(section, "\n"+heading+"\n")
		require.True(t, found, "%s has no %q", page, heading)
		section, _, _ = strings.Cut(after, "\n## ")
	}
	for line := range strings.SplitSeq(section, "\n") {
		if !strings.HasPrefix(line, "| ") || strings.HasPrefix(line, "| ---") {
			continue
		}
		r := row{}
		for cell := range strings.SplitSeq(strings.Trim(line, "|"), "|") {
			r.cells = append(r.cells, strings.TrimSpace(cell))
		}
		for _, match := range quoted.FindAllStringSubmatch(r.cells[0], -1) {
			r.names = append(r.names, match[1])
		}
		rows = append(rows, r)
	}
	return rows
}

// Each option is in docs/options.md, with the default that its comment ends with.
func TestEachOptionIsDocumentedWithItsDefault(t *testing.T) {
	t.Parallel()
	for _, of := range []struct{ file, name, heading string }{
		{"options.go", "Options", "## pinboard.Options"},
		{"options.go", "Affinity", "## pinboard.Affinity"},
		{"hooks.go", "Hooks", "## pinboard.Hooks"},
		{"worker/options.go", "Options", "## worker.Options"},
		{"worker/host.go", "HostOptions", "## worker.HostOptions"},
	} {
		rows := tables(t, "docs/options.md", of.heading)
		documented := map[string]bool{}
		options := optionsOf(t, of.file, of.name)
		comment := "" // of the last one that has one: names may share it
		for _, o := range options {
			if o.comment != "" {
				comment = o.comment
			}
			at := slices.IndexFunc(rows, func(r row) bool { return slices.Contains(r.names, o.name) })
			require.GreaterOrEqual(t, at, 0, "docs/options.md, %s: no row for %s", of.heading, o.name)
			documented[o.name] = true
			require.Len(t, rows[at].cells, 3, "%s", rows[at].cells)
			requireDefault(t, of.name+"."+o.name, comment, rows[at].cells[2])
		}
		for _, r := range rows[1:] { // the first is the heading
			for _, name := range r.names {
				require.True(t, documented[name], "docs/options.md, %s: there is no %s", of.heading, name)
			}
		}
	}
}

// requireDefault checks that a cell says what the comment says.
func requireDefault(t *testing.T, name, comment, cell string) {
	t.Helper()
	said := strings.NewReplacer("`", "", "; ", ", ").Replace(cell)
	require.NotEmpty(t, said, name)
	if strings.HasPrefix(said, "required") {
		require.Regexp(t, `[Rr]equired\.`, comment, name)
		return
	}
	if strings.HasSuffix(name, "HostOptions."+name[strings.LastIndexByte(name, '.')+1:]) && !strings.Contains(comment, "Default") {
		require.Contains(t, said, "of Options", name)
		return
	}
	// A structure has its own table, and its fields their defaults.
	if said == "see there" || said == "see MemoryStore" {
		require.Regexp(t, `(see|says|prefers|there)`, comment, name)
		return
	}
	at := strings.LastIndex(comment, "efault")
	require.GreaterOrEqual(t, at, 0, "the comment of %s has no default", name)
	require.Contains(t, strings.ReplaceAll(comment[at:], "; ", ", "), said, name)
}

// Limits have a test of their own.
func TestEachVariableIsDocumentedWithItsDefault(t *testing.T) {
	t.Parallel()
	asked := map[string]bool{}
	_, err := pinboard.ReadEnvironment(func(name string) (string, bool) { asked[name] = true; return "", false })
	require.Error(t, err) // two are required
	require.Greater(t, len(asked), 30)
	server := slices.Concat(tables(t, "README.md", "## Run it standalone"), tables(t, "docs/operating.md", ""), tables(t, "docs/monitoring.md", ""))
	requireRows(t, asked, server, "README.md, docs/operating.md or docs/monitoring.md")

	worker := map[string]bool{}
	for _, name := range variablesIn(t, "worker") {
		worker[name] = true
	}
	require.Greater(t, len(worker), 5)
	text, err := os.ReadFile("docs/workers.md")
	require.NoError(t, err)
	for name := range worker {
		require.Contains(t, string(text), "`"+name+"`", "docs/workers.md")
	}
	for _, dir := range []string{"cmd/pinboard", "internal/cli"} {
		for _, name := range variablesIn(t, dir) {
			require.True(t, asked[name] || worker[name], "%s in %s is nowhere in the documents", name, dir)
		}
	}
}

func requireRows(t *testing.T, names map[string]bool, rows []row, where string) {
	t.Helper()
	for name := range names {
		at := slices.IndexFunc(rows, func(r row) bool {
			return slices.ContainsFunc(r.cells, func(cell string) bool { return strings.Contains(cell, "`"+name+"`") }) &&
				len(r.cells) >= 3
		})
		require.GreaterOrEqual(t, at, 0, "%s has no row for %s", where, name)
		standard := rows[at].cells[min(3, len(rows[at].cells)-1)]
		require.NotEmpty(t, standard, "the row of %s has no default", name)
	}
}

var variableForm = regexp.MustCompile(`^(PINBOARD|REDIS|ADVERTISE|OTEL|NODE|APP)_[A-Z_]+$|^(ENVIRONMENT|PORT)$`)

// variablesIn returns the names of environment variables that the code of a package
// has as texts.
func variablesIn(t *testing.T, dir string) (names []string) {
	t.Helper()
	require.NoError(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		if err != nil {
			return err
		}
		ast.Inspect(parsed, func(n ast.Node) bool {
			if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING {
				if text, err := strconv.Unquote(lit.Value); err == nil && variableForm.MatchString(text) {
					names = append(names, text)
				}
			}
			return true
		})
		return nil
	}))
	slices.Sort(names)
	return slices.Compact(names)
}
