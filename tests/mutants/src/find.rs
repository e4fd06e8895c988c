//! The places of a file where a mutant can be.

use std::fs;
use std::ops::Range;
use std::path::Path;

use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{BinOp, Block, Expr, Lit, ReturnType, Signature, Type};

use crate::Failure;

/// One change of the program, which is made only while it is chosen.
pub(crate) struct Mutant {
    pub(crate) file: String,
    pub(crate) line: usize,
    pub(crate) end: usize,
    pub(crate) what: &'static str,
    pub(crate) text: String,
    pub(crate) edits: Vec<Edit>,
}

/// Text that goes in at a byte of the file. `#` stands for the mutant's number.
pub(crate) struct Edit {
    pub(crate) at: usize,
    /// The order at one position: ends of inner expressions, ends of outer ones, beginnings of outer ones, of inner ones.
    pub(crate) rank: isize,
    pub(crate) text: String,
}

pub(crate) fn mutants_of(root: &Path, path: &Path) -> Result<Vec<Mutant>, Failure> {
    let text = fs::read_to_string(path)?;
    let file = path.strip_prefix(root)?.to_string_lossy().into_owned();
    let parsed = syn::parse_file(&text).map_err(|error| format!("{file}: {error}"))?;
    let mut finder = Finder { text: &text, file, found: Vec::new() };
    finder.visit_file(&parsed);
    Ok(finder.found)
}

struct Finder<'t> {
    text: &'t str,
    file: String,
    found: Vec<Mutant>,
}

impl Finder<'_> {
    fn slice(&self, range: Range<usize>) -> &str {
        self.text.get(range).unwrap_or_default()
    }

    /// A mutant of the code of `shown`. `before` and `after` go around `range`.
    fn add(
        &mut self,
        what: &'static str,
        shown: proc_macro2::Span,
        range: Range<usize>,
        (before, after): (String, &str),
    ) {
        let length = isize::try_from(range.len()).unwrap_or(isize::MAX);
        let text = self
            .slice(shown.byte_range())
            .lines()
            .next()
            .unwrap_or_default()
            .to_owned();
        let mut edits = vec![Edit { at: range.start, rank: isize::MAX - length, text: before }];
        if !after.is_empty() {
            edits.push(Edit { at: range.end, rank: length - isize::MAX, text: after.to_owned() });
        }
        let (line, end) = (shown.start().line, shown.end().line);
        self.found
            .push(Mutant { file: self.file.clone(), line, end, what, text, edits });
    }

    /// `other` in place of the expression, while the mutant is awake.
    fn instead(&mut self, what: &'static str, expr: &impl Spanned, other: &str) {
        // A copy of an expression of several lines would move the lines behind it.
        if other.contains('\n') {
            return;
        }
        let before = format!("(if crate::mutants::on(#) {{ {other} }} else {{ ");
        self.add(what, expr.span(), expr.span().byte_range(), (before, " })"));
    }

    /// `condition` is false while the mutant is awake.
    fn never(&mut self, what: &'static str, condition: &Expr) {
        if !has_let(condition) {
            let before = "(!crate::mutants::on(#) && (".to_owned();
            self.add(what, condition.span(), condition.span().byte_range(), (before, "))"));
        }
    }

    fn body(&mut self, signature: &Signature, block: &Block) {
        let ReturnType::Type(_, output) = &signature.output else {
            return;
        };
        let Type::Path(output) = &**output else {
            return;
        };
        let text = self.slice(output.span().byte_range());
        if signature.constness.is_none()
            && (text == "Result<()>" || text.starts_with("Result<(), "))
        {
            let at = block.brace_token.span.open().byte_range().end;
            let before = " if crate::mutants::on(#) { return Ok(()); }".to_owned();
            self.add("a check is left out", signature.ident.span(), at..at, (before, ""));
        }
    }
}

fn has_let(expr: &Expr) -> bool {
    match expr {
        Expr::Let(_) => true,
        Expr::Binary(binary) => has_let(&binary.left) || has_let(&binary.right),
        Expr::Paren(inner) => has_let(&inner.expr),
        _ => false,
    }
}

/// The operator that goes in its place, and the name of the change.
fn swapped(op: &BinOp) -> Option<(&'static str, &'static str)> {
    Some(match op {
        BinOp::Lt(_) => ("<=", "boundary"),
        BinOp::Le(_) => ("<", "boundary"),
        BinOp::Gt(_) => (">=", "boundary"),
        BinOp::Ge(_) => (">", "boundary"),
        BinOp::Eq(_) => ("!=", "equality"),
        BinOp::Ne(_) => ("==", "equality"),
        BinOp::And(_) => ("||", "and, or"),
        BinOp::Or(_) => ("&&", "and, or"),
        BinOp::Add(_) => ("-", "arithmetic"),
        BinOp::Sub(_) => ("+", "arithmetic"),
        BinOp::Mul(_) => ("+", "arithmetic"),
        BinOp::Div(_) => ("*", "arithmetic"),
        BinOp::Rem(_) => ("/", "arithmetic"),
        BinOp::Shl(_) => (">>", "bits"),
        BinOp::Shr(_) => ("<<", "bits"),
        BinOp::BitAnd(_) => ("|", "bits"),
        BinOp::BitOr(_) => ("&", "bits"),
        BinOp::BitXor(_) => ("|", "bits"),
        _ => return None,
    })
}

/// The method that goes in place of one.
fn other_method(name: &str) -> Option<&'static str> {
    Some(match name {
        "min" => "max",
        "max" => "min",
        "any" => "all",
        "all" => "any",
        "is_some" => "is_none",
        "is_none" => "is_some",
        "first" => "last",
        "last" => "first",
        "starts_with" => "ends_with",
        "ends_with" => "starts_with",
        "div_ceil" => "wrapping_div",
        _ => return None,
    })
}

fn is_test(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| match &attribute.meta {
        syn::Meta::List(list) => {
            list.path.is_ident("cfg") && list.tokens.to_string().starts_with("test")
        }
        meta => meta.path().is_ident("test"),
    })
}

// Constants cannot ask which mutant is awake; patterns and types hold no expressions that could.
impl<'a> Visit<'a> for Finder<'_> {
    fn visit_pat(&mut self, _: &'a syn::Pat) {}
    fn visit_type(&mut self, _: &'a Type) {}
    fn visit_generic_argument(&mut self, _: &'a syn::GenericArgument) {}
    fn visit_attribute(&mut self, _: &'a syn::Attribute) {}
    fn visit_item_const(&mut self, _: &'a syn::ItemConst) {}
    fn visit_item_static(&mut self, _: &'a syn::ItemStatic) {}
    fn visit_impl_item_const(&mut self, _: &'a syn::ImplItemConst) {}
    fn visit_trait_item_const(&mut self, _: &'a syn::TraitItemConst) {}
    fn visit_variant(&mut self, _: &'a syn::Variant) {}
    fn visit_expr_const(&mut self, _: &'a syn::ExprConst) {}

    fn visit_expr_repeat(&mut self, repeat: &'a syn::ExprRepeat) {
        self.visit_expr(&repeat.expr);
    }

    fn visit_item_mod(&mut self, module: &'a syn::ItemMod) {
        if !is_test(&module.attrs) {
            visit::visit_item_mod(self, module);
        }
    }

    fn visit_item_fn(&mut self, function: &'a syn::ItemFn) {
        if function.sig.constness.is_none() && !is_test(&function.attrs) {
            self.body(&function.sig, &function.block);
            visit::visit_item_fn(self, function);
        }
    }

    fn visit_impl_item_fn(&mut self, function: &'a syn::ImplItemFn) {
        if function.sig.constness.is_none() && !is_test(&function.attrs) {
            self.body(&function.sig, &function.block);
            visit::visit_impl_item_fn(self, function);
        }
    }

    fn visit_expr_if(&mut self, branch: &'a syn::ExprIf) {
        self.never("a branch is never taken", &branch.cond);
        visit::visit_expr_if(self, branch);
    }

    fn visit_arm(&mut self, arm: &'a syn::Arm) {
        if let Some((_, guard)) = &arm.guard {
            self.never("a branch is never taken", guard);
        }
        visit::visit_arm(self, arm);
    }

    fn visit_expr_unary(&mut self, unary: &'a syn::ExprUnary) {
        if let syn::UnOp::Not(_) = unary.op {
            let other = self.slice(unary.expr.span().byte_range()).to_owned();
            self.instead("not", unary, &other);
        }
        visit::visit_expr_unary(self, unary);
    }

    fn visit_expr_lit(&mut self, literal: &'a syn::ExprLit) {
        if let Lit::Int(number) = &literal.lit {
            let other = format!("{number} + 1");
            self.instead("number", literal, &other);
        }
    }

    fn visit_expr_binary(&mut self, binary: &'a syn::ExprBinary) {
        if let Some((other, what)) = swapped(&binary.op)
            && !has_let(&binary.left)
            && !has_let(&binary.right)
        {
            let left = self.slice(binary.left.span().byte_range());
            let right = self.slice(binary.right.span().byte_range());
            let other = format!("{left} {other} {right}");
            self.instead(what, binary, &other);
        }
        visit::visit_expr_binary(self, binary);
    }

    fn visit_expr_method_call(&mut self, call: &'a syn::ExprMethodCall) {
        if let Some(other) = other_method(&call.method.to_string()) {
            let (whole, name) = (call.span().byte_range(), call.method.span().byte_range());
            let other = format!(
                "{}{other}{}",
                self.slice(whole.start..name.start),
                self.slice(name.end..whole.end)
            );
            self.instead("method", call, &other);
        }
        visit::visit_expr_method_call(self, call);
    }
}
