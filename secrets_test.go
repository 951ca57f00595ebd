package pinboard_test

import (
	"encoding/json"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// How long a comparison of a secret takes must not tell how much of a guess was
// right. Secrets are compared by wire.Secret.Equal, subtle or hmac.Equal; the
// test below finds what compares them in another way in the packages of the
// product. What it takes for a secret:
//
//   - a wire.Secret, which == would compare by where it lies, and its text;
//   - a variable, field, parameter or result that holds text or bytes and is
//     named like one (secretName), or was set from a secret in the same function;
//   - what a function returns that is named for signing (signer).
//
// A constant on the other side is no comparison of two secrets: tests for the
// empty text are fine. Nor is a hash of a secret one (Secret.Sum): nobody can
// choose it bit by bit. A session's id is none either: operators see it, and
// nothing is opened by it alone.
var secretName = regexp.MustCompile(`(?i)^(|.*[a-z])(secret|token|password|signature|credential|challenge|challengevalue|challengeanswer)$`)

// signer is what functions are called that return a signature.
var signer = regexp.MustCompile(`^([sS]ign|[mM]ac|MAC)$`)

// comparing are functions that stop at the first difference.
var comparing = map[string][]string{
	"bytes":   {"Equal", "Compare", "EqualFold", "Contains", "HasPrefix", "HasSuffix", "Index", "Cut", "CutPrefix", "CutSuffix"},
	"strings": {"Compare", "EqualFold", "Contains", "HasPrefix", "HasSuffix", "Index", "Cut", "CutPrefix", "CutSuffix"},
	"slices":  {"Equal", "Compare", "Contains", "Index", "BinarySearch"},
	"cmp":     {"Compare"},
	"reflect": {"DeepEqual"},
}

// comparisons finds comparisons of secrets in one package.
type comparisons struct {
	fset  *token.FileSet
	info  *types.Info
	held  map[types.Object]bool // variables that were set from a secret
	found []string
}

func (c *comparisons) report(at ast.Node, what string) {
	p := c.fset.Position(at.Pos())
	c.found = append(c.found, fmt.Sprintf("%s:%d: %s", filepath.ToSlash(p.Filename), p.Line, what))
}

// inspect looks through files whose types are known.
func (c *comparisons) inspect(files []*ast.File) {
	c.held = map[types.Object]bool{}
	for before := -1; before != len(c.held); { // until no more is set from a secret
		before = len(c.held)
		for _, f := range files {
			ast.Inspect(f, c.note)
		}
	}
	for _, f := range files {
		ast.Inspect(f, c.judge)
	}
	slices.Sort(c.found)
}

// note remembers which variables are set from secrets.
func (c *comparisons) note(n ast.Node) bool {
	set := func(to, from ast.Expr) {
		if name, ok := to.(*ast.Ident); ok && c.secret(from) {
			if object := c.info.ObjectOf(name); object != nil {
				c.held[object] = true
			}
		}
	}
	switch n := n.(type) {
	case *ast.AssignStmt:
		for i, to := range n.Lhs {
			if len(n.Lhs) == len(n.Rhs) {
				set(to, n.Rhs[i])
			}
		}
	case *ast.ValueSpec:
		for i, to := range n.Names {
			if i < len(n.Values) {
				set(to, n.Values[i])
			}
		}
	}
	return true
}

func (c *comparisons) judge(n ast.Node) bool {
	switch n := n.(type) {
	case *ast.BinaryExpr:
		switch n.Op {
		case token.EQL, token.NEQ, token.LSS, token.LEQ, token.GTR, token.GEQ:
			if c.compares(n.X, n.Y) {
				c.report(n, n.Op.String())
			}
		}
	case *ast.SwitchStmt:
		for _, clause := range n.Body.List {
			for _, e := range clause.(*ast.CaseClause).List {
				if n.Tag != nil && c.compares(n.Tag, e) {
					c.report(e, "switch")
				}
			}
		}
	case *ast.IndexExpr:
		if _, isMap := under[*types.Map](c.info.TypeOf(n.X)); isMap && c.secret(n.Index) {
			c.report(n, "look-up in a map")
		}
	case *ast.CallExpr:
		if name, ok := c.comparing(n); ok && c.compares(n.Args...) {
			c.report(n, name)
		}
	}
	return true
}

// compares reports whether a secret is among the expressions, and no constant.
func (c *comparisons) compares(list ...ast.Expr) bool {
	for _, e := range list {
		if tv := c.info.Types[e]; tv.Value != nil || tv.IsNil() {
			return false
		}
	}
	return slices.ContainsFunc(list, c.secret)
}

func (c *comparisons) comparing(call *ast.CallExpr) (name string, ok bool) {
	fun := ast.Unparen(call.Fun)
	if generic, ok := fun.(*ast.IndexExpr); ok {
		fun = generic.X
	}
	sel, ok := fun.(*ast.SelectorExpr)
	if !ok {
		return "", false
	}
	f, ok := c.info.Uses[sel.Sel].(*types.Func)
	if !ok || f.Pkg() == nil {
		return "", false
	}
	return f.FullName(), slices.Contains(comparing[f.Pkg().Path()], f.Name())
}

// secret reports whether the value of an expression is a secret's.
func (c *comparisons) secret(e ast.Expr) bool {
	e = ast.Unparen(e)
	if isSecret(c.info.TypeOf(e)) {
		return true
	}
	switch e := e.(type) {
	case *ast.Ident:
		object := c.info.ObjectOf(e)
		return c.held[object] || named(object)
	case *ast.SelectorExpr:
		return named(c.info.ObjectOf(e.Sel))
	case *ast.SliceExpr:
		return c.secret(e.X)
	case *ast.StarExpr:
		return c.secret(e.X)
	case *ast.CallExpr:
		if tv := c.info.Types[e.Fun]; tv.IsType() && len(e.Args) == 1 { // a conversion
			return c.secret(e.Args[0])
		}
		switch fun := ast.Unparen(e.Fun).(type) {
		case *ast.Ident:
			return signer.MatchString(fun.Name)
		case *ast.SelectorExpr:
			return signer.MatchString(fun.Sel.Name) || fun.Sel.Name == "Reveal" && isSecret(c.info.TypeOf(fun.X))
		}
	}
	return false
}

func isSecret(t types.Type) bool {
	n, ok := types.Unalias(t).(*types.Named)
	return ok && n.Obj().Name() == "Secret" && n.Obj().Pkg().Name() == "wire"
}

// named reports whether something holds text or bytes and is called a secret.
func named(object types.Object) bool {
	v, ok := object.(*types.Var)
	if !ok || !secretName.MatchString(v.Name()) {
		return false
	}
	if b, ok := under[*types.Basic](v.Type()); ok {
		return b.Info()&types.IsString != 0
	}
	if s, ok := under[*types.Slice](v.Type()); ok {
		return types.Identical(s.Elem(), types.Typ[types.Byte])
	}
	return false
}

func under[T types.Type](t types.Type) (T, bool) {
	if t == nil {
		var none T
		return none, false
	}
	u, ok := t.Underlying().(T)
	return u, ok
}

// checked returns what is found in files of one package.
func checked(t *testing.T, fset *token.FileSet, path string, files []*ast.File, imports types.Importer) []string {
	t.Helper()
	c := &comparisons{fset: fset, info: &types.Info{
		Types: map[ast.Expr]types.TypeAndValue{}, Uses: map[*ast.Ident]types.Object{}, Defs: map[*ast.Ident]types.Object{},
	}}
	_, err := (&types.Config{Importer: imports}).Check(path, fset, files, c.info)
	require.NoError(t, err)
	c.inspect(files)
	return c.found
}

// built is a package as the go command lists it.
type built struct {
	ImportPath, Dir, Export string
	Standard                bool
	GoFiles                 []string
}

// buildList lists this module's packages and all that they import, compiled.
func buildList(t *testing.T) (list []built, imports types.Importer, fset *token.FileSet) {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", "list", "-pgo=off", "-export", "-deps", "-json=ImportPath,Dir,Export,Standard,GoFiles", "./...").Output()
	require.NoError(t, err)
	exports := map[string]string{}
	for dec := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p built
		if err := dec.Decode(&p); err == io.EOF {
			break
		} else {
			require.NoError(t, err)
		}
		list = append(list, p)
		exports[p.ImportPath] = p.Export
	}
	fset = token.NewFileSet()
	return list, importer.ForCompiler(fset, "gc", func(path string) (io.ReadCloser, error) { return os.Open(exports[path]) }), fset
}

func TestSecretsAreComparedInConstantTime(t *testing.T) {
	t.Parallel()
	list, imports, fset := buildList(t)
	seen, all := 0, []string(nil)
	for _, p := range list {
		below := below(p.ImportPath)
		if !strings.HasPrefix(p.ImportPath, module) || strings.HasPrefix(below, "examples") || strings.Contains(below, "testdata") ||
			strings.HasPrefix(below, "internal/leak") { // it is at work in tests only
			continue
		}
		var files []*ast.File
		for _, name := range p.GoFiles {
			f, err := parser.ParseFile(fset, filepath.Join(p.Dir, name), nil, 0)
			require.NoError(t, err)
			files = append(files, f)
		}
		all = append(all, checked(t, fset, p.ImportPath, files, imports)...)
		seen++
	}
	require.Greater(t, seen, 10)
	require.Empty(t, all, "secrets are compared so that the time tells of them")
}

// The test above has to find something where there is something.
func TestComparisonsOfSecretsAreFound(t *testing.T) {
	t.Parallel()
	_, imports, fset := buildList(t)
	const head = `package wire
import ("bytes"; "slices"; "strings"; "crypto/subtle"; "crypto/hmac"; "cmp"; "reflect")
var _, _, _, _, _, _, _ = bytes.Equal, slices.Contains[[]string], strings.Compare, subtle.ConstantTimeCompare, hmac.Equal, cmp.Compare[int], reflect.DeepEqual
type Secret struct{ text *string }
func (s Secret) Reveal() string { return *s.text }
func (s Secret) Equal(o Secret) bool { return subtle.ConstantTimeCompare([]byte(s.Reveal()), []byte(o.Reveal())) == 1 }
func sign(s Secret) string { return "" }
type key struct{ token string; raw []byte; name string }
func f(s, o Secret, k key, sessionSecret, given string, list []string, byText map[string]int, bySecret map[Secret]int) (_ bool) {
`
	for body, want := range map[string]string{
		"return s == o":                                            "==",
		"return s.Reveal() != given":                               "!=",
		"return given != sign(s)":                                  "!=",
		"return given == k.token":                                  "==",
		"return sessionSecret < given":                             "<",
		"x := s.Reveal(); y := x; return given == y":               "==",
		"var x = []byte(s.Reveal()); return bytes.Equal(x, k.raw)": "bytes.Equal",
		"return strings.EqualFold(given, (k.token))":               "strings.EqualFold",
		"return strings.HasPrefix(k.token[:8], given)":             "strings.HasPrefix",
		"return slices.Contains(list, sessionSecret)":              "slices.Contains",
		"return slices.Contains[[]string](list, k.token)":          "slices.Contains",
		"return reflect.DeepEqual(given, s)":                       "reflect.DeepEqual",
		"return cmp.Compare(given, k.token) == 0":                  "cmp.Compare",
		"switch given { case k.token: return true }; return":       "switch",
		"switch k.token { case given: return true }; return":       "switch",
		"_, ok := byText[string([]byte(k.token))]; return ok":      "look-up in a map",
		"_ = bySecret[s]; return":                                  "look-up in a map",
		// What is fine.
		"return s.Equal(o)": "",
		"return subtle.ConstantTimeCompare([]byte(k.token), []byte(given)) == 1": "",
		"return hmac.Equal([]byte(k.token), k.raw)":                              "",
		`return s.Reveal() == "" || k.token != "" || len(k.token) == len(given)`: "",
		`return k.name == given || byText[given] == 1`:                           "",
		`return strings.HasPrefix(k.token, "Bearer ")`:                           "",
		`switch k.token { case "": return true }; return`:                        "",
	} {
		f, err := parser.ParseFile(fset, "planted.go", head+body+"\n}", 0)
		require.NoError(t, err, body)
		found := checked(t, fset, "planted/wire", []*ast.File{f}, imports)
		if want == "" {
			require.Empty(t, found, body)
			continue
		}
		require.Len(t, found, 1, body)
		require.Contains(t, found[0], ": "+want, body)
	}
}
