package pinboard_test

import (
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const module = "github.com/pinboard-go/pinboard"

type pkg struct {
	ImportPath string
	Doc        string
	Imports    []string
}

func packages(t *testing.T) []pkg {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", "list", "-json=ImportPath,Doc,Imports", "./...").Output()
	require.NoError(t, err)
	var list []pkg
	for dec := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p pkg
		if err := dec.Decode(&p); err == io.EOF {
			break
		} else {
			require.NoError(t, err)
		}
		list = append(list, p)
	}
	require.NotEmpty(t, list)
	return list
}

// C43: leases are judged by Redis' clock alone: nodes whose clocks differ by minutes
// must agree on them. The node's monotonic clock measures two things: how far
// Redis' clock went between two answers, and how old what is known is.
func TestTheRedisStoreReadsNoWallClockOfItsNode(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("internal/store/redis/*.go")
	require.NoError(t, err)
	looked := 0
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		require.NoError(t, err)
		ast.Inspect(file, func(n ast.Node) bool {
			if call, ok := n.(*ast.SelectorExpr); ok {
				if of, ok := call.X.(*ast.Ident); ok && of.Name == "time" {
					looked++
					if base := filepath.Base(name); base != "resolve.go" && base != "clocks.go" && base != "known.go" {
						require.NotContains(t, []string{"Now", "Since", "Until"}, call.Sel.Name, name)
					}
				}
			}
			return true
		})
	}
	require.Positive(t, looked)
}

func TestEveryPackageHasADoc(t *testing.T) {
	t.Parallel()
	for _, p := range packages(t) {
		require.NotEmpty(t, p.Doc, "%s has no package comment", p.ImportPath)
	}
}

// What a package must not import, by its path below the module.
func forbidden(importer, imported string) bool {
	switch {
	case imported == "internal/leak", imported == "internal/quiet": // they know nothing of anybody
		return false
	case importer == "worker":
		// The client of a service must not drag in the server, its store or
		// its passports.
		return imported == "" || imported == "passport" || strings.HasPrefix(imported, "internal/store")
	case importer == "":
		return imported == "worker"
	case importer == "internal/wire", importer == "internal/resources", importer == "internal/leak", importer == "internal/quiet":
		return true
	case importer == "internal/attest", importer == "passport":
		return imported != "internal/wire"
	case strings.HasPrefix(importer, "internal/store"):
		return imported != "internal/wire" && !strings.HasPrefix(imported, "internal/store") && imported != "internal/redistest"
	}
	return false
}

func TestImportsPointTheRightWay(t *testing.T) {
	t.Parallel()
	for _, p := range packages(t) {
		importer := below(p.ImportPath)
		for _, i := range p.Imports {
			if !strings.HasPrefix(i, module) {
				continue
			}
			require.False(t, forbidden(importer, below(i)), "%s must not import %s", p.ImportPath, i)
		}
		if strings.HasPrefix(importer, "internal/store") {
			require.False(t, slices.Contains(p.Imports, "net/http"), "%s must not know HTTP", p.ImportPath)
		}
	}
}

// .ci/test finds what counts allocations by the import and the name, and builds it
// without the race detector.
func TestWhatCountsAllocationsIsFoundByItsName(t *testing.T) {
	t.Parallel()
	counting := 0
	require.NoError(t, filepath.WalkDir(".", func(name string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(name, "_test.go") {
			return err
		}
		text, err := os.ReadFile(name)
		require.NoError(t, err)
		require.NotContains(t, string(text), "testing.Allocs"+"PerRun", "%s: internal/allocs counts", name)
		if !strings.Contains(string(text), module+"/internal/allocs\"") {
			return nil
		}
		counting++
		require.True(t, strings.HasPrefix(string(text), "//go:build !race && !leakcheck\n"), name)
		for line := range strings.Lines(string(text)) {
			if strings.HasPrefix(line, "func Test") {
				require.Contains(t, line, "Allocat", name)
			}
		}
		return nil
	}))
	require.Positive(t, counting)
}

func below(importPath string) string {
	return strings.TrimPrefix(strings.TrimPrefix(path.Clean(importPath), module), "/")
}

// The package comment says where things are: it names every file, and none that is
// not there.
func TestThePackageCommentNamesEveryFile(t *testing.T) {
	t.Parallel()
	file, err := parser.ParseFile(token.NewFileSet(), "pinboard.go", nil, parser.ParseComments)
	require.NoError(t, err)
	var named []string
	for word := range strings.FieldsSeq(file.Doc.Text()) {
		if strings.HasSuffix(word, ".go") {
			named = append(named, word)
		}
	}
	var there []string
	files, err := filepath.Glob("*.go")
	require.NoError(t, err)
	for _, name := range files {
		if !strings.HasSuffix(name, "_test.go") {
			there = append(there, name)
		}
	}
	require.ElementsMatch(t, there, named)
}
