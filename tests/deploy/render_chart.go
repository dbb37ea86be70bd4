// Renders the templates of a Helm chart with the language that Helm uses: Go's text/template and sprig. Reads the
// context (Values, Release, Chart) as JSON from stdin, prints {template: text} as JSON. For machines without Helm:
// golang-go, golang-github-masterminds-sprig-dev and golang-k8s-sigs-yaml-dev of Debian are enough.
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"text/template"

	"github.com/Masterminds/sprig"
	"sigs.k8s.io/yaml"
)

func main() {
	var context map[string]interface{}
	check(json.NewDecoder(os.Stdin).Decode(&context))
	root := template.New("chart").Option("missingkey=error")
	functions := sprig.TxtFuncMap()
	functions["include"] = func(name string, data interface{}) (string, error) {
		var text bytes.Buffer
		err := root.ExecuteTemplate(&text, name, data)
		return text.String(), err
	}
	functions["toYaml"] = func(value interface{}) (string, error) {
		text, err := yaml.Marshal(value)
		return strings.TrimSuffix(string(text), "\n"), err
	}
	functions["required"] = func(message string, value interface{}) (interface{}, error) {
		if value == nil || value == "" {
			return nil, errors.New(message)
		}
		return value, nil
	}
	root.Funcs(functions)
	paths, err := filepath.Glob(filepath.Join(os.Args[1], "templates", "*"))
	check(err)
	for _, path := range paths {
		text, err := os.ReadFile(path)
		check(err)
		_, err = root.New(filepath.Base(path)).Parse(string(text))
		check(err)
	}
	rendered := map[string]string{}
	for _, path := range paths {
		if name := filepath.Base(path); !strings.HasPrefix(name, "_") {
			var text bytes.Buffer
			check(root.ExecuteTemplate(&text, name, context))
			rendered[name] = text.String()
		}
	}
	check(json.NewEncoder(os.Stdout).Encode(rendered))
}

func check(err error) {
	if err != nil {
		os.Stderr.WriteString("Error: " + err.Error() + "\n")
		os.Exit(1)
	}
}
